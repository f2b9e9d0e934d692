#include "sampling/rng.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

namespace h3 {
namespace {

uint64_t fnv1a(const std::vector<float>& values) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (float value : values) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    for (int i = 0; i < 4; ++i) hash = (hash ^ ((bits >> (8 * i)) & 0xffu)) * 0x100000001b3u;
  }
  return hash;
}

void append(std::vector<float>& all, const std::vector<float>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

// The hashes are of streams drawn by a stock x86 build of torch.
TEST(TorchGenerator, StreamsMatchTorchBitForBit) {
  EXPECT_EQ(fnv1a(TorchGenerator(42).randn(16)), 0x080ffa5fbeb15154u);
  EXPECT_EQ(fnv1a(TorchGenerator(42).randn(20)), 0xc1d466f638cae7cbu);
  EXPECT_EQ(fnv1a(TorchGenerator(42).randn(15)), 0x4c7fdcb26081ae6bu);
  EXPECT_EQ(fnv1a(TorchGenerator(42).randn(4096)), 0x905c539edd97b7bau);
  EXPECT_EQ(fnv1a(TorchGenerator(42).randn(100003)), 0xad70f304aebcf132u);
  EXPECT_EQ(fnv1a(TorchGenerator(7).randn(4000000)), 0x80994eb92ab1ab15u);
}

TEST(TorchGenerator, FewerThanSixteenUseTheDoublePath) {
  const uint32_t expected[] = {0x3eac62ae, 0x3e03e69d, 0x3e7016e7, 0x3e6bdc6c, 0xbf8fb9c2};
  const std::vector<float> values = TorchGenerator(42).randn(5);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(std::bit_cast<uint32_t>(values[i]), expected[i]) << i;
}

TEST(TorchGenerator, TheSpareValueSurvivesLongDraws) {
  TorchGenerator generator(123456789012345u);
  std::vector<float> all;
  for (int64_t n : {5, 20, 3, 16, 7}) append(all, generator.randn(n));
  EXPECT_EQ(fnv1a(all), 0x4addb69eb486a949u);
}

TEST(TorchGenerator, OneRequestDrawsVideoThenSound) {
  TorchGenerator generator(42);
  EXPECT_EQ(fnv1a(generator.randn(24 * 37 * 34 * 60)), 0x9f613231cf279244u);
  const std::vector<float> audio = generator.randn(414 * 32);
  EXPECT_EQ(fnv1a(audio), 0x0125d6e87eee241du);
  EXPECT_EQ(std::bit_cast<uint32_t>(audio[0]), 0x3fa8b4d0u);
}

TEST(TorchGenerator, OnlyTheLowBitsOfTheSeedCount) {
  EXPECT_EQ(TorchGenerator(1).randn(64), TorchGenerator((uint64_t{1} << 53) + 1).randn(64));
}

TEST(SplitMixGenerator, MatchesPublishedOutputs) {
  SplitMixGenerator generator(0);  // first outputs of the published algorithm for seed 0
  EXPECT_EQ(generator.next_u64(), 0xe220a8397b1dcdafu);
  EXPECT_EQ(generator.next_u64(), 0x6e789e6aa1b965f4u);
}

TEST(SplitMixGenerator, OddLengthsArePrefixes) {
  const std::vector<float> even = SplitMixGenerator(9).randn(8), odd = SplitMixGenerator(9).randn(7);
  EXPECT_TRUE(std::equal(odd.begin(), odd.end(), even.begin()));
}

TEST(PhiloxGenerator, FirstValuesOfSeed42) {
  const float expected[] = {0.194019f, 2.161374f, -0.172051f, 0.849060f};
  PhiloxGenerator generator(42);
  const std::vector<float> first = generator.randn(4);
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(first[i], expected[i], 1e-6f) << i;
  EXPECT_NE(generator.randn(4), first);  // every call has its own index
}

}  // namespace
}  // namespace h3
