// h3 pack, verify and info as their users meet them.
#include <algorithm>

#include "store/cmf.h"
#include "tests/cli/program.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

// Files of release size, made by hash: gigabytes to write, so that there is time to be interrupted.
const std::vector<std::string> kLong = {"pack",
                                        "--random",
                                        "release-4b",
                                        "--without",
                                        "conditioner,video-decoder,video-encoder,audio-decoder,audio-encoder",
                                        "-o",
                                        "m.cmf"};

const char* const kVae = H3_SOURCE_DIR "/tests/data/golden/toy/vae";

class PackCommand : public ProgramTest {
 protected:
  void flip(const std::string& name, uint64_t offset) const {
    std::string bytes = read(name);
    bytes.at(offset) = static_cast<char>(bytes[offset] ^ 0x20);
    write(name, bytes);
  }
};

TEST_F(PackCommand, AStoppedPackLeavesNothing) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const Outcome outcome = run(kLong, {.interrupt_at_file = "m.cmf.part", .signal = signal});
    EXPECT_EQ(outcome.code, 130) << outcome.err;
    EXPECT_NE(outcome.err.find("h3: stopped on request"), std::string::npos) << outcome.err;
    EXPECT_TRUE(files().empty());
  }
}

TEST_F(PackCommand, WhatAKilledPackLeavesIsReplaced) {
  const Outcome killed = run(kLong, {.interrupt_at_file = "m.cmf.part", .signal = SIGKILL});
  EXPECT_EQ(killed.code, 128 + SIGKILL);
  EXPECT_EQ(files(), std::vector<std::string>{"m.cmf.part"});
  const Outcome again = run({"pack", kVae, "-o", "m.cmf"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.err.find("m.cmf.part: "), std::string::npos) << again.err;
  EXPECT_NE(again.err.find("an interrupted pack left behind"), std::string::npos) << again.err;
  EXPECT_EQ(files(), std::vector<std::string>{"m.cmf"});
  EXPECT_EQ(run({"verify", "m.cmf"}).code, 0);
}

TEST_F(PackCommand, AFullDiskLeavesTheOldFile) {
  write("m.cmf", "what was there before");
  expect_refused({"pack", kVae, "-o", "m.cmf"}, 1, {"cannot write", "m.cmf"}, {.file_limit = 100000});
  EXPECT_EQ(read("m.cmf"), "what was there before");
}

TEST_F(PackCommand, DamageIsNamedAndMended) {
  const Outcome packed = run({"pack", kVae, "-o", "a.cmf"});
  ASSERT_EQ(packed.code, 0) << packed.err;
  fs::copy(folder_ / "a.cmf", folder_ / "b.cmf");
  const CmfFile sound(path("a.cmf"));
  const CmfTensor& tensor = *std::max_element(sound.tensors().begin(), sound.tensors().end(),
                                              [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  flip("b.cmf", tensor.offset + tensor.bytes / 2);

  const Outcome damaged = run({"verify", "b.cmf"});
  EXPECT_EQ(damaged.code, 1);
  const std::string range = "bytes " + std::to_string(tensor.offset) + " to ";
  EXPECT_NE(damaged.out.find("tensor '" + tensor.name + "', " + range), std::string::npos) << damaged.out;

  const Outcome mended = run({"verify", "b.cmf", "--repair", "a.cmf"});
  EXPECT_EQ(mended.code, 0) << mended.out << mended.err;
  EXPECT_NE(mended.out.find("mended b.cmf: tensor '" + tensor.name + "'"), std::string::npos) << mended.out;
  EXPECT_TRUE(read("a.cmf") == read("b.cmf"));

  fs::resize_file(folder_ / "b.cmf", fs::file_size(folder_ / "b.cmf") / 2);
  const Outcome cut = run({"verify", "b.cmf"});
  EXPECT_EQ(cut.code, 1);
  EXPECT_EQ(cut.out.find("b.cmf: end of the file"), 0u) << cut.out;  // truncation first
  EXPECT_EQ(run({"verify", "b.cmf", "--repair", "a.cmf"}).code, 0);
  EXPECT_TRUE(read("a.cmf") == read("b.cmf"));

  const Outcome info = run({"info", "a.cmf"});
  EXPECT_EQ(info.code, 0) << info.err;
  for (const char* text : {"video VAE", "CMF", "q4tp"}) EXPECT_NE(info.out.find(text), std::string::npos) << info.out;
}

}  // namespace
}  // namespace h3
