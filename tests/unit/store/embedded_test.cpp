#include "store/embedded.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file_map.h"
#include "store/model_files.h"

namespace h3 {
namespace {

TEST(Embedded, HoldsTheFilesOfTheFolder) {
  const std::string folder = std::string(H3_SOURCE_DIR) + "/models/demo/";
  if (embedded_demo().empty()) GTEST_SKIP() << "built without the demo model";
  size_t bytes = 0;
  for (const MemoryFile& file : embedded_demo()) {
    bytes += file.bytes.size();
    const FileMap map(folder + std::string(file.name));
    ASSERT_EQ(map.bytes().size(), file.bytes.size()) << file.name;
    EXPECT_TRUE(std::equal(file.bytes.begin(), file.bytes.end(), map.bytes().begin())) << file.name;
  }
  EXPECT_LE(bytes, size_t{16} << 20);  // the program carries them
}

TEST(Embedded, IsACompleteModel) {
  if (embedded_demo().empty()) GTEST_SKIP() << "built without the demo model";
  const ModelFiles files = open_model_files({});
  for (const Role role : {Role::dit, Role::conditioner, Role::video_vae, Role::audio_vae}) {
    ASSERT_NE(files.find(role), nullptr) << name_of(role);
    EXPECT_TRUE(files.find(role)->config.is_object());
  }
  EXPECT_EQ(files.find(Role::dit)->origin, "embedded demo");
  EXPECT_EQ(files.find(Role::conditioner)->config.at("text_encoder_layer").as_int(), 4);
  EXPECT_EQ(files.defaults.at("steps").as_int(), 8);
  EXPECT_EQ(files.defaults.at("video_shift").as_double(), 12.0);
  ASSERT_TRUE(files.tokenizer.has_value());
  EXPECT_FALSE(files.tokenizer->tokenizer_json.empty());
}

}  // namespace
}  // namespace h3
