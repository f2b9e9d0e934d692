// What a file is follows from its content.
#include "store/open.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "store/model_files.h"
#include "tests/support/gguf_file.h"
#include "tests/support/temp_folder.h"

namespace h3 {
namespace {

using testing::GgufFile;

class Open : public ::testing::Test {
 protected:
  std::string put(const std::string& name, const std::string& bytes) const {
    std::ofstream(root_ / name, std::ios::binary) << bytes;
    return root_ / name;
  }
  static std::string safetensors() {
    const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
    return GgufFile::number(header.size(), 8) + header + "x";
  }

  TempFolder root_;
};

TEST_F(Open, ByContentWhateverTheEnding) {
  const std::string gguf = GgufFile().tensor("m", 0, {1}, GgufFile::floats({1})).bytes();
  EXPECT_STREQ(open_checkpoint(put("a.safetensors", gguf))->container(), "GGUF");
  EXPECT_STREQ(open_checkpoint(put("b.gguf", safetensors()))->container(), "safetensors");
  EXPECT_STREQ(open_checkpoint(put("c", safetensors()))->container(), "safetensors");
  const std::string index = put("index.txt", R"( {"weight_map":{"a":"c"}})");
  EXPECT_EQ(open_checkpoint(index)->files().size(), 1u);
  // A header whose length has the code of '{' as its first byte is still not text.
  std::string padded = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  padded.resize('{', ' ');
  EXPECT_STREQ(open_checkpoint(put("d", GgufFile::number(padded.size(), 8) + padded + "x"))->container(),
               "safetensors");
}

TEST_F(Open, UnknownContentSaysWhatIsAccepted) {
  const struct {
    std::string bytes;
    const char* says;
  } cases[] = {
      {"", "it is empty"},
      {"hello, world", "68 65 6c 6c"},
      {std::string(100, '\0'), "unfinished download"},
      {std::string("PK\3\4abcdefgh"), "ZIP archive"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"},
      {"<!DOCTYPE html><html>", "web page"},
      {std::string("\x80\2}q\0", 5), "pickle"},
  };
  for (const auto& c : cases) {
    const std::string path = put("file.safetensors", c.bytes);
    try {
      open_checkpoint(path);
      ADD_FAILURE() << c.says;
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.code(), Code::data);
      for (const char* part : {path.c_str(), c.says, "accepted are safetensors", "GGUF"}) {
        EXPECT_NE(text.find(part), text.npos) << text << " lacks " << part;
      }
    }
  }
}

TEST_F(Open, AGgufInAFolderIsAComponent) {
  GgufFile file;
  for (const char* name : {"video_patch_proj.weight", "audio_patch_proj.weight"}) {
    file.tensor(name, 0, {1, 1}, GgufFile::floats({1}));
  }
  put("dit.gguf", file.bytes());
  OpenOptions options;
  options.paths = {root_.path()};
  const ModelFiles files = open_model_files(options);
  ASSERT_NE(files.find(Role::dit), nullptr);
  EXPECT_STREQ(files.find(Role::dit)->source->container(), "GGUF");
  EXPECT_EQ(files.find(Role::dit)->qkv_order, QkvOrder::contiguous);
}

TEST_F(Open, TheTokenizerInsideAFileIsFound) {
  GgufFile file;
  file.raw_value("tokenizer.ggml.merges", 9, GgufFile::strings({"a b"}));
  for (const char* name : {"token_embd.weight", "blk.0.attn_q_norm.weight"}) {
    file.tensor(name, 0, {1, 1}, GgufFile::floats({1}));
  }
  OpenOptions options;
  options.paths = {put("te.gguf", file.bytes())};
  const ModelFiles files = open_model_files(options);
  ASSERT_NE(files.find(Role::conditioner), nullptr);
  ASSERT_TRUE(files.tokenizer.has_value());
  EXPECT_EQ(files.tokenizer->merges_txt, "a b\n");
}

}  // namespace
}  // namespace h3
