// Bad input: one line that names the thing, the value and what is allowed; exit code 2 for the request, 1 for a file or
// the run; nothing written.
#include <cstring>
#include <fstream>
#include <limits>
#include <span>

#include "store/tensor_source.h"
#include "tests/cli/program.h"
#include "tests/support/toy_model.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;
using BadInput = ProgramTest;
using testing::kToyModel;

std::string safetensors(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\0');
}

TEST_F(BadInput, NoCommandAndUnknownOnes) {
  EXPECT_EQ(run({}).code, 2);
  expect_refused({"genrate"}, 2, {"unknown command genrate", "did you mean generate?"});
  expect_refused({"bench"}, 2, {"bench takes one of", "eval"});
  expect_refused({"devices", "extra"}, 2, {"devices takes no argument", "extra"});
}

TEST_F(BadInput, UnknownFlags) {
  expect_refused(quick({"--framse", "5"}), 2, {"unknown flag --framse", "did you mean --frames?"});
  expect_refused(quick({"--frobnicate"}), 2, {"unknown flag --frobnicate", "--help"});
  expect_refused(quick({"-Q"}), 2, {"unknown flag -Q"});
}

TEST_F(BadInput, Prompts) {
  expect_refused({"generate", "-o", "c.y4m"}, 2, {"prompt", "empty"});
  expect_refused({"generate", "-p", "", "-o", "c.y4m"}, 2, {"prompt", "empty"});
  expect_refused({"generate", "-p", "\xff\xfe", "-o", "c.y4m"}, 2, {"prompt", "UTF-8"});
  expect_refused({"generate", "-p", "a <|video_pad|>", "-o", "c.y4m"}, 2, {"prompt", "<|video_pad|>"});
  expect_refused({"generate", "--prompt-file", "none.txt", "-o", "c.y4m"}, 1, {"none.txt"});
}

TEST_F(BadInput, BlankPromptIsLegalAndWarnedAbout) {
  const Outcome outcome =
      run({"generate", "-p", " ", "--steps", "1", "--size", "64x64", "--frames", "5", "-o", "c.y4m"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("warning: prompt: it is blank"), std::string::npos) << outcome.err;
}

TEST_F(BadInput, Sizes) {
  for (const char* value : {"0", "-64", "5000", "31"}) {
    expect_refused(quick({"--width", value, "--height", "64"}), 2, {"width", value, "32 to 4096"});
    expect_refused(quick({"--height", value, "--width", "64"}), 2, {"height", value, "32 to 4096"});
  }
  expect_refused(quick({"--size", "0x64"}), 2, {"width: 0 is not allowed"});
  expect_refused(quick({"--width", "abc", "--height", "64"}), 2, {"--width", "\"abc\"", "whole number"});
  expect_refused(quick({"--width", "64.5", "--height", "64"}), 2, {"--width", "\"64.5\""});
  expect_refused(quick({"--size", "wide"}), 2, {"--size", "\"wide\"", "WIDTHxHEIGHT"});
  expect_refused({"generate", "-p", "x", "--width", "64"}, 2, {"width: 64 is given alone", "height"});
  expect_refused({"generate", "-p", "x", "--aspect", "9:1"}, 2, {"aspect", "9:1", "1:4 to 4:1"});
  expect_refused({"generate", "-p", "x", "--aspect", "1:4", "-W", "4096"}, 2, {"height: 16384"});
}

TEST_F(BadInput, Frames) {
  for (const char* value : {"0", "-5", "100000"}) {
    expect_refused(quick({"--frames", value}), 2, {"frames", value, "1 to 1450"});
  }
  expect_refused(quick({"--frames", "many"}), 2, {"--frames", "\"many\""});
  expect_refused({"generate", "-p", "x", "--seconds", "-1"}, 2, {"seconds", "-1"});
  expect_refused({"generate", "-p", "x", "--seconds", "1e9"}, 2, {"seconds", "60.4"});
}

TEST_F(BadInput, OffGridIsSnappedAndSaid) {
  const Outcome outcome =
      run({"generate", "-p", "x", "--steps", "1", "--size", "70x90", "--frames", "4", "-o", "c.y4m"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("70x90"), std::string::npos);
  EXPECT_NE(outcome.err.find("64x96"), std::string::npos);
  EXPECT_NE(outcome.err.find("frames: 4"), std::string::npos);
  EXPECT_NE(outcome.out.find("64x96, 5 frames"), std::string::npos) << outcome.out;
}

TEST_F(BadInput, OtherNumbers) {
  expect_refused(quick({"--steps", "0"}), 2, {"steps: 0", "1 to 1000"});
  expect_refused(quick({"--steps", "100000"}), 2, {"steps: 100000"});
  expect_refused(quick({"--seed", "-2"}), 2, {"seed", "-2"});
  expect_refused(quick({"--seed", "1e3"}), 2, {"seed", "1e3"});
  expect_refused(quick({"--shift", "0"}), 2, {"video_shift: 0"});
  expect_refused(quick({"--threads", "-1"}), 2, {"threads: -1"});
  expect_refused(quick({"--te-layers", "0"}), 2, {"--te-layers: 0"});
  expect_refused(quick({"--quality", "80"}), 2, {"quality: 80", "0 to 51"});
}

TEST_F(BadInput, Words) {
  expect_refused(quick({"--profile", "diffuser"}), 2, {"profile", "did you mean diffusers?"});
  expect_refused(quick({"--sampler", "ddim"}), 2, {"sampler", "\"ddim\"", "euler"});
  expect_refused(quick({"--scheduler", "karras"}), 2, {"scheduler", "\"karras\"", "linspace"});
  expect_refused(quick({"--precision", "f8"}), 2, {"precision", "\"f8\"", "f32, bf16, int8, fp8 or nvfp4"});
  expect_refused(quick({"--device", "tpu"}), 2, {"tpu", "cpu"});
  expect_refused(quick({"--dump", "everything=x.st"}), 2, {"dump", "\"everything\"", "latents"});
  expect_refused(quick({"--log-level", "loud"}), 2, {"--log-level", "\"loud\"", "debug"});
  expect_refused(quick({"--cfg-scale", "7"}), 2, {"--cfg-scale: 7", "distilled"});
  expect_refused(quick({"--negative-prompt", "ugly"}), 2, {"--negative-prompt"});
}

TEST_F(BadInput, Keyframes) {
  expect_refused(quick({"--first-frame", "none.png"}), 1, {"none.png"});
  write("folder/inside.txt", "x");
  expect_refused(quick({"--first-frame", "folder"}), 1, {"folder"});
  write("text.png", "this is no picture at all, only text that goes on for a while");
  expect_refused(quick({"--first-frame", "text.png"}), 1, {"text.png"});
  write("empty.png", "");
  expect_refused(quick({"--last-frame", "empty.png"}), 1, {"empty.png"});
  write("short.ppm", "P6\n64 64\n255\n\x01\x02\x03");
  expect_refused(quick({"--first-frame", "short.ppm"}), 1, {"short.ppm"});
  std::ifstream in(std::string(H3_SOURCE_DIR) + "/models/demo/reference/kf_last.png", std::ios::binary);
  const std::string png((std::istreambuf_iterator<char>(in)), {});
  write("cut.png", png.substr(0, png.size() / 2));
  expect_refused(quick({"--first-frame", "cut.png"}), 1, {"cut.png"});
}

TEST_F(BadInput, ModelFiles) {
  const std::string one = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  expect_refused(quick({"-m", "none.safetensors"}), 1, {"none.safetensors"});
  write("empty.safetensors", "");
  expect_refused(quick({"-m", "empty.safetensors"}), 1, {"empty.safetensors"});
  write("past.safetensors", std::string("\xff\xff\x00\x00\x00\x00\x00\x00{}", 10));
  expect_refused(quick({"-m", "past.safetensors"}), 1, {"past.safetensors", "65535"});
  write("overlap.safetensors",
        safetensors("{" + one + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12));
  expect_refused(quick({"-m", "overlap.safetensors"}), 1, {"overlap.safetensors", "b"});
  write("gap.safetensors", safetensors("{" + one + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}})", 20));
  expect_refused(quick({"-m", "gap.safetensors"}), 1, {"gap.safetensors", "b"});
  write("twice.safetensors", safetensors("{" + one + "," + one + "}", 8));
  expect_refused(quick({"-m", "twice.safetensors"}), 1, {"twice.safetensors", "a"});
  write("size.safetensors", safetensors(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8));
  expect_refused(quick({"-m", "size.safetensors"}), 1, {"size.safetensors", "a", "[3]"});
  write("json.safetensors", safetensors("{\"a\":", 8));
  expect_refused(quick({"-m", "json.safetensors"}), 1, {"json.safetensors"});
  write("other.safetensors", safetensors("{" + one + "}", 8));
  expect_refused(quick({"-m", "other.safetensors"}), 1, {"other.safetensors"});
}

// A copy of the toy repository, to take something away from.
void copy_toy(const fs::path& to) {
  fs::create_directories(to);
  for (const fs::directory_entry& entry : fs::directory_iterator(kToyModel)) {
    fs::create_symlink(entry.path(), to / entry.path().filename());
  }
}

TEST_F(BadInput, MissingParts) {
  copy_toy(folder_ / "model");
  fs::remove(folder_ / "model/tokenizer");
  expect_refused(quick({"-m", "model"}), 2, {"no tokenizer", "tokenizer.json"});
  fs::remove(folder_ / "model/transformer");
  EXPECT_NE(run(quick({"-m", "model"})).code, 0);
}

TEST_F(BadInput, NotANumberInTheWeightsIsFoundWithItsStep) {
  copy_toy(folder_ / "model");
  const std::string transformer = kToyModel + "/transformer/";
  fs::remove(folder_ / "model/transformer");
  fs::create_directories(folder_ / "model/transformer");
  fs::copy_file(transformer + "config.json", folder_ / "model/transformer/config.json");
  const std::unique_ptr<TensorSource> source = open_safetensors(transformer);
  const TensorInfo* const bias = source->find("audio_proj_out.bias");
  ASSERT_NE(bias, nullptr);
  ASSERT_EQ(bias->format, Format::f32);
  std::vector<float> poisoned(bias->data.size() / sizeof(float), std::numeric_limits<float>::quiet_NaN());
  std::vector<TensorToWrite> tensors;
  for (const TensorInfo& tensor : source->tensors()) {
    const bool planted = tensor.name == bias->name;
    tensors.push_back({tensor.name, tensor.format, tensor.dims,
                       planted ? std::as_bytes(std::span<const float>(poisoned)) : tensor.data});
  }
  write_safetensors(path("model/transformer/model.safetensors"), tensors, {});
  expect_refused(quick({"-m", "model"}), 1, {"denoise at step 1 of 1", "audio velocity", "NaN"});
}

TEST_F(BadInput, KeyframeWithoutVisionTower) {
  copy_toy(folder_ / "model");
  const std::string encoder = kToyModel + "/text_encoder/";
  fs::remove(folder_ / "model/text_encoder");
  fs::create_directories(folder_ / "model/text_encoder");
  fs::copy_file(encoder + "config.json", folder_ / "model/text_encoder/config.json");
  const std::unique_ptr<TensorSource> source = open_safetensors(encoder);
  std::vector<TensorToWrite> kept;
  for (const TensorInfo& tensor : source->tensors()) {
    if (tensor.name.find("visual") != std::string::npos) continue;
    kept.push_back({tensor.name, tensor.format, tensor.dims, tensor.data});
  }
  ASSERT_LT(kept.size(), source->tensors().size());
  write_safetensors(path("model/text_encoder/model.safetensors"), kept, {});
  const Outcome outcome = run(quick({"-m", "model"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  fs::remove(folder_ / "clip.y4m");
  fs::remove(folder_ / "clip.wav");
  write("frame.ppm", "P6\n2 2\n255\n" + std::string(12, '\x40'));
  expect_refused(quick({"-m", "model", "--first-frame", "frame.ppm"}), 2, {"first_frame", "no vision tower"});
}

TEST_F(BadInput, Outputs) {
  expect_refused(quick({"-o", "missing/clip.y4m"}), 1, {"missing"});
  expect_refused(quick({"-o", "clip.xyz"}), 2, {"xyz"});
  expect_refused(quick({"--report", "missing/r.json"}), 1, {"missing/r.json"});
  expect_refused(quick({"--dump", "text=missing/t.st"}), 1, {"dump", "missing/t.st"});
  expect_refused(quick({"--wav", "missing/a.wav"}), 1, {"wav", "missing/a.wav"});
  expect_refused(quick({"--wav", "clip.y4m"}), 2, {"clip.y4m"});
  expect_refused(quick({"--no-audio", "--wav", "a.wav"}), 2, {"wav", "a.wav"});
  write("frame.ppm", "P6\n2 2\n255\n" + std::string(12, '\x40'));
  expect_refused(quick({"--first-frame", "frame.ppm", "--wav", "frame.ppm"}), 2, {"frame.ppm", "also an input"});
}

TEST_F(BadInput, DiskFull) {
  RunOptions full;
  full.file_limit = 4096;
  expect_refused(quick(), 1, {"clip.", "File too large"}, full);
  full.file_limit = 100'000;  // enough for the clip and its sound
  expect_refused(quick({"--dump", "frames=f.st"}), 1, {"f.st", "File too large"}, full);
}

TEST_F(BadInput, Embeddings) {
  write("other.st", safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  expect_refused({"generate", "--prompt-embeds", "other.st", "--size", "64x64", "--frames", "5"}, 1,
                 {"other.st", "prompt_embeds", "--dump text=FILE"});
  write("narrow.st", safetensors(R"({"prompt_embeds":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})", 8));
  expect_refused({"generate", "--prompt-embeds", "narrow.st", "--size", "64x64", "--frames", "5"}, 1,
                 {"2 features", "128"});
}

TEST_F(BadInput, ClipsWithoutSettings) {
  expect_refused({"rerun"}, 2, {"rerun takes one clip"});
  expect_refused({"rerun", "none.mp4"}, 1, {"none.mp4"});
  write("foreign.y4m", "YUV4MPEG2 W2 H2 F24:1\nFRAME\n" + std::string(12, '\0'));
  expect_refused({"rerun", "foreign.y4m"}, 1, {"foreign.y4m", "no settings"});
}

}  // namespace
}  // namespace h3
