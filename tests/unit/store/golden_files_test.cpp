// The toy checkpoints of $H3_GOLDEN in every layout they come in.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "store/model_files.h"
#include "tests/support/official_folder.h"
#include "tests/support/temp_folder.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

class GoldenFiles : public testing::Test {
 protected:
  void SetUp() override {
    const char* golden = std::getenv("H3_GOLDEN");
    if (golden == nullptr || !fs::exists(golden)) GTEST_SKIP() << "H3_GOLDEN is not set";
    golden_ = golden;
  }
  static ModelFiles open(const std::vector<std::string>& paths) {
    OpenOptions options;
    options.paths = paths;
    return open_model_files(options);
  }
  std::string golden_;
};

TEST_F(GoldenFiles, EverySafetensorsFileOpens) {
  size_t files = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(golden_)) {
    if (entry.path().extension() != ".safetensors") continue;
    EXPECT_FALSE(open_safetensors(entry.path().string())->tensors().empty());
    ++files;
  }
  EXPECT_GT(files, 0u);
}

TEST_F(GoldenFiles, DiffusersToy) {
  const ModelFiles files = open({golden_ + "/toy"});
  ASSERT_EQ(files.components.size(), 5u);
  EXPECT_EQ(files.find_dit(Partition::fl2va)->source, files.find_dit(Partition::ref2va)->source);
  for (const Role role : {Role::dit, Role::conditioner, Role::video_vae, Role::audio_vae}) {
    ASSERT_NE(files.find(role), nullptr);
    EXPECT_EQ(files.find(role)->spelling, Spelling::diffusers);
    EXPECT_TRUE(files.find(role)->config.is_object());
  }
  ASSERT_TRUE(files.tokenizer.has_value());
  EXPECT_FALSE(files.tokenizer->vocab_json.empty());
  EXPECT_FALSE(files.tokenizer->merges_txt.empty());
  EXPECT_FALSE(files.tokenizer->tokenizer_config_json.empty());
}

TEST_F(GoldenFiles, ComfyToyWithPartsOfTheRepository) {
  const ModelFiles files = open({golden_ + "/toy_comfy/minimax_h3_toy.safetensors", golden_ + "/toy_original/video_vae",
                                 golden_ + "/toy/audio_vae", golden_ + "/toy/text_encoder"});
  ASSERT_EQ(files.components.size(), 4u);
  EXPECT_EQ(files.find(Role::dit)->spelling, Spelling::comfy);
  EXPECT_EQ(files.find(Role::dit)->qkv_order, QkvOrder::contiguous);
  EXPECT_EQ(files.find(Role::video_vae)->spelling, Spelling::official);
  EXPECT_NE(files.find(Role::video_vae)->config.find("norm_num_groups"), nullptr);
  EXPECT_NE(files.find(Role::video_vae)->config.find("latents_mean"), nullptr);
  EXPECT_TRUE(files.tokenizer.has_value());
}

TEST_F(GoldenFiles, OfficialToy) {
  const TempFolder root;
  assemble_official_folder(golden_, root.path());
  {
    const ModelFiles files = open({root.path()});
    ASSERT_EQ(files.components.size(), 4u);
    EXPECT_EQ(files.find(Role::dit)->spelling, Spelling::official);
    EXPECT_EQ(files.find(Role::dit)->source->files().size(), 13u);
    EXPECT_EQ(files.find(Role::dit)->qkv_order, QkvOrder::interleaved);
    EXPECT_EQ(files.find(Role::dit)->partition_from.substr(0, 8), "declared");
    EXPECT_EQ(files.find(Role::video_vae)->spelling, Spelling::official);
    EXPECT_TRUE(files.tokenizer.has_value());
  }
}

}  // namespace
}  // namespace h3
