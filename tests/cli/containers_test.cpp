// The same weights in another container render the same clip.
#include <fstream>

#include "store/open.h"
#include "tests/cli/program.h"
#include "tests/support/gguf_file.h"
#include "tests/support/toy_model.h"

namespace h3 {
namespace {

using testing::GgufFile;

class Containers : public ProgramTest {
 protected:
  static std::string toy(const char* part) { return testing::kToyModel + "/" + part; }

  // The toy's transformer as stable-diffusion.cpp's converter writes files: no metadata, types per tensor.
  std::string put_gguf(const std::string& name) const {
    const std::unique_ptr<TensorSource> source = open_checkpoint(toy("transformer"));
    GgufFile file;
    for (const TensorInfo& info : source->tensors()) {
      const uint32_t type = info.format == Format::f32 ? 0 : info.format == Format::f16 ? 1 : 30;
      file.tensor(info.name, type, info.dims,
                  std::string(reinterpret_cast<const char*>(info.data.data()), info.data.size()));
    }
    std::ofstream(path(name), std::ios::binary) << file.bytes();
    return path(name);
  }

  std::string render(const std::string& transformer, const std::string& clip) const {
    const Outcome outcome = run({"generate", transformer, toy("text_encoder"), toy("vae"), toy("audio_vae"),
                                 "--tokenizer", toy("tokenizer"), "--te-layers", "4", "-p", "A red circle.", "--steps",
                                 "1", "--size", "64x64", "--frames", "5", "-o", clip});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return read(clip);
  }
};

TEST_F(Containers, GgufRendersTheSameClip) {
  const std::string file = put_gguf("renamed.safetensors");
  const std::string loose = render(toy("transformer"), "a.y4m");
  EXPECT_GT(loose.size(), 1000u);
  EXPECT_EQ(render(file, "b.y4m"), loose);
  const Outcome info = run({"info", file});
  EXPECT_EQ(info.code, 0) << info.err;
  for (const char* text : {"transformer", "1 GGUF file", "contiguous"}) {
    EXPECT_NE(info.out.find(text), std::string::npos) << info.out;
  }
}

TEST_F(Containers, DamagedFilesAreNamed) {
  const std::string bytes = read(put_gguf("dit.gguf"));
  write("cut.gguf", bytes.substr(0, bytes.size() / 2));
  expect_refused({"generate", "cut.gguf", "-p", "x", "-o", "c.y4m"}, 1,
                 {"cut.gguf", "tensor '", "offset", "truncated"});
  write("text.gguf", "hello, world\n");
  expect_refused({"info", "text.gguf"}, 1, {"text.gguf", "not a checkpoint", "safetensors", "GGUF"});
}

}  // namespace
}  // namespace h3
