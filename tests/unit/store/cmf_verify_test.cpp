// Verify names what is damaged, and repair mends exactly that.
#include "store/cmf_verify.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/toy_cmf.h"

namespace h3 {
namespace {

class CmfVerify : public testing::Test {
 protected:
  void SetUp() override { good_ = toy_cmf().bytes; }

  std::string put(const char* name, const std::vector<std::byte>& bytes) const {
    const std::string path = root_ / name;
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return path;
  }
  static std::vector<std::byte> get(const std::string& path) {
    const FileMap map(path);
    return {map.bytes().begin(), map.bytes().end()};
  }

  TempFolder root_;
  std::vector<std::byte> good_;
  ThreadPool pool_{2};
};

TEST_F(CmfVerify, ASoundFileHasNoFaults) {
  const CmfVerdict verdict = verify_cmf(put("a.cmf", good_), pool_);
  EXPECT_TRUE(verdict.faults.empty());
  EXPECT_EQ(verdict.tensors, 7);
  EXPECT_GT(verdict.hashed_bytes, 17000u);
}

// Every byte of every payload and hashed section: a flip is found, and in the right place.
TEST_F(CmfVerify, EveryFlippedByteIsFoundAndNamed) {
  const CmfFile file("toy.cmf", good_);
  for (const CmfTensor& tensor : file.tensors()) {
    for (uint64_t at = tensor.offset; at < tensor.offset + tensor.bytes; at += 1 + tensor.bytes / 5) {
      std::vector<std::byte> bytes = good_;
      bytes[at] ^= std::byte{0x10};
      const CmfVerdict verdict = verify_cmf(put("flip.cmf", bytes), pool_);
      ASSERT_EQ(verdict.faults.size(), 1u) << tensor.name;
      EXPECT_EQ(verdict.faults[0].what, "tensor '" + tensor.name + "'");
      EXPECT_EQ(verdict.faults[0].offset, tensor.offset);
      EXPECT_EQ(verdict.faults[0].bytes, tensor.bytes);
    }
  }
  std::vector<std::byte> bytes = good_;
  bytes[file.envelope().vocab.offset + 3] ^= std::byte{1};
  const CmfVerdict verdict = verify_cmf(put("vocab.cmf", bytes), pool_);
  ASSERT_EQ(verdict.faults.size(), 1u);
  EXPECT_EQ(verdict.faults[0].what, "tokenizer");
}

TEST_F(CmfVerify, TruncationComesFirst) {
  const std::vector<std::byte> cut(good_.begin(), good_.begin() + 9000);
  const CmfVerdict verdict = verify_cmf(put("cut.cmf", cut), pool_);
  ASSERT_GE(verdict.faults.size(), 3u);
  EXPECT_EQ(verdict.faults[0].what, "end of the file");
  EXPECT_EQ(verdict.faults[0].problem, "truncated: 9000 of 25426 bytes");
  EXPECT_EQ(verdict.faults[1].what, "tensor 'vis.merger.linear_fc2.weight'");
}

TEST_F(CmfVerify, WordsThatChangedPlacesAreFoundByTheStrongHash) {
  if (!StrongHash::available()) GTEST_SKIP() << "built without xxHash";
  const std::string path = root_ / "strong.cmf";
  const uint64_t words[4] = {1, 2, 3, 4};
  const std::string zero(32, '0');
  const auto header = [](const std::string& hash) {
    return "{\"version\":2,\"arch\":{},\"quant_type\":\"F32\",\"h3\":{\"xxh3_128\":{\"dit.x\":\"" + hash + "\"}}}";
  };
  CmfWriter writer(path, {{"dit.x", 0, {8}, sizeof words}}, {}, {.header_bytes = header(zero).size()});
  writer.write(std::as_bytes(std::span(words)));
  writer.commit(header(writer.strong_hashes()[0]));
  EXPECT_TRUE(verify_cmf(path, pool_).faults.empty());
  std::vector<std::byte> bytes = get(path);
  patch(bytes, 4096, uint64_t{2});
  patch(bytes, 4104, uint64_t{1});
  const CmfVerdict verdict = verify_cmf(put("swapped.cmf", bytes), pool_);
  ASSERT_EQ(verdict.faults.size(), 1u);
  EXPECT_NE(verdict.faults[0].problem.find("words changed places"), std::string::npos);
}

TEST_F(CmfVerify, RepairMendsFlipsHeadsAndTruncation) {
  const std::string source = put("source.cmf", good_);
  const struct {
    size_t offset, length;
    const char* what;
  } damages[] = {{4100, 1, "tensor 'dit.blocks.0.mlp.fc1.weight'"},
                 {20, 3, "envelope"},
                 {140, 9, "header"},
                 {700, 60, "directory"},
                 {25415, 2, "tokenizer"}};
  for (const auto& damage : damages) {
    std::vector<std::byte> bytes = good_;
    for (size_t i = 0; i < damage.length; ++i) bytes[damage.offset + i] ^= std::byte{0xa5};
    const std::string path = put("bad.cmf", bytes);
    const CmfRepair repair = repair_cmf(path, source, pool_);
    ASSERT_EQ(repair.mended.size(), 1u) << damage.what;
    EXPECT_EQ(repair.mended[0].what, damage.what);
    EXPECT_EQ(get(path), good_) << damage.what;
  }
  const std::string cut = put("cut.cmf", {good_.begin(), good_.begin() + 5000});
  const CmfRepair repair = repair_cmf(cut, source, pool_);
  EXPECT_TRUE(repair.truncated);
  EXPECT_EQ(get(cut), good_);
  EXPECT_TRUE(repair_cmf(cut, source, pool_).mended.empty());
}

TEST_F(CmfVerify, RepairRefusesOtherFilesAndDamagedSources) {
  std::vector<std::byte> other = good_;
  for (size_t i = 0x70; i < 0x80; ++i) other[i] ^= std::byte{1};
  const auto refusal = [&](const std::string& path, const std::string& source) -> std::string {
    try {
      repair_cmf(path, source, pool_);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  std::vector<std::byte> bad = good_;
  bad[4100] ^= std::byte{1};
  const std::string target = put("target.cmf", bad), source = put("source.cmf", bad);
  EXPECT_NE(refusal(target, source).find("is damaged too"), std::string::npos);
  EXPECT_EQ(get(target), bad);
  std::vector<std::byte> longer = good_;
  longer.resize(longer.size() + 1);
  EXPECT_NE(refusal(put("longer.cmf", longer), put("sound.cmf", good_)).find("not copies"), std::string::npos);
  other[688 + 60] ^= std::byte{1};
  EXPECT_NE(refusal(put("other.cmf", other), put("sound.cmf", good_)).find("not copies"), std::string::npos);
}

}  // namespace
}  // namespace h3
