// The element comparer must be able to fail (style C3).
#include "ops/contract.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace h3::contract {
namespace {

struct Contract : ::testing::Test {
  HostDevice device;
  std::vector<float> want = {1, -2, 3, 0.5f, 0, 100};
  std::optional<Divergence> compare(const std::vector<float>& got, const Slack& slack = {}, DType type = DType::f32) {
    const Tensor g = upload_f32(device, got.data(), {2, 3}, type, "got");
    const Tensor w = upload_f32(device, want.data(), {2, 3}, type, "want");
    return find_divergence(g, w, slack);
  }
};

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

TEST_F(Contract, EqualPasses) {
  EXPECT_FALSE(compare(want));
  EXPECT_FALSE(compare(want, Slack(6, 0.0)));
}

TEST_F(Contract, EveryPlantedFaultFails) {
  const Slack generous(6, 0.4);
  const auto with = [&](size_t i, float value) {
    std::vector<float> got = want;
    got[i] = value;
    return got;
  };
  for (const std::vector<float>& got :
       {with(0, kNaN), with(4, kNaN), with(2, kInf), with(5, -kInf), with(1, 2), with(3, -0.5f), with(0, 1.5f),
        std::vector<float>(6, 0.0f), std::vector<float>{0.5f, 0, 100, 1, -2, 3}}) {
    EXPECT_TRUE(compare(got)) << got[0];
    EXPECT_TRUE(compare(got, generous)) << got[0];
  }
}

TEST_F(Contract, ReportsTheFirstAndCounts) {
  const std::optional<Divergence> d = compare({1, -2, 3.5f, 0.5f, kNaN, 100});
  ASSERT_TRUE(d);
  EXPECT_EQ(d->index, 2);
  EXPECT_EQ(d->bad, 2);
  EXPECT_EQ(d->got, 3.5);
  EXPECT_EQ(d->want, 3);
}

TEST_F(Contract, NaNMeetsNaNAndInfItself) {
  want[1] = kNaN;
  EXPECT_FALSE(compare(want));
  EXPECT_TRUE(compare({1, -2, 3, 0.5f, 0, 100}, Slack(6, 1e30)));
  want[1] = kInf;
  EXPECT_FALSE(compare(want));
  EXPECT_TRUE(compare({1, 3e38f, 3, 0.5f, 0, 100}, Slack(6, 1e30)));
  EXPECT_TRUE(compare({1, -kInf, 3, 0.5f, 0, 100}, Slack(6, 1e30)));
  EXPECT_TRUE(compare({1, kNaN, 3, 0.5f, 0, 100}, Slack(6, 1e30)));
}

TEST_F(Contract, SlackIsPerElementAndNaNSlackAllowsNothing) {
  EXPECT_FALSE(compare({1.25f, -2, 3, 0.5f, 0, 100}, {0.25, 0, 0, 0, 0, 0}));
  EXPECT_TRUE(compare({1, -2.25f, 3, 0.5f, 0, 100}, {0.25, 0, 0, 0, 0, 0}));
  EXPECT_TRUE(compare({1.25f, -2, 3, 0.5f, 0, 100}, Slack(6, std::nan(""))));
}

TEST_F(Contract, OnlyAnOpenElementIsLeftAlone) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(compare({kNaN, -2, 3, 0.5f, 0, 100}, {kOpen, 0, 0, 0, 0, 0}));
  EXPECT_TRUE(compare({1, kNaN, 3, 0.5f, 0, 100}, {kOpen, 0, 0, 0, 0, 0}));
  EXPECT_TRUE(compare({kNaN, -2, 3, 0.5f, 0, 100}, Slack(6, inf)));
  want[0] = kInf;
  EXPECT_TRUE(compare({1, -2, 3, 0.5f, 0, 100}, Slack(6, inf)));
}

TEST_F(Contract, OneUnitInTheLastPlaceOnlyWhereTheOpIsNotExact) {
  EXPECT_TRUE(compare({1.0078125f, -2, 3, 0.5f, 0, 100}, {}, DType::bf16));
  EXPECT_FALSE(compare({1.0078125f, -2, 3, 0.5f, 0, 100}, Slack(6, 0.0), DType::bf16));
  EXPECT_TRUE(compare({1.015625f, -2, 3, 0.5f, 0, 100}, Slack(6, 0.0), DType::bf16));
}

TEST_F(Contract, IntegersMustBeEqual) {
  const Tensor a = upload_i32(device, {1, 2, 3}, "a"), b = upload_i32(device, {1, 5, 3}, "b");
  EXPECT_FALSE(find_divergence(a, a, {}));
  const std::optional<Divergence> d = find_divergence(a, b, {});
  ASSERT_TRUE(d);
  EXPECT_EQ(d->index, 1);
}

// A weight off by half a unit of bf16 is within the slack of rounded weights, one off by two units is not; f32 gets
// none.
TEST_F(Contract, RoundedWeights) {
  const float x[] = {2, -4}, magnitude[] = {2 * 1 + 4 * 3};
  const Tensor m = upload_f32(device, magnitude, {1, 1}, DType::f32, "magnitude");
  Slack slack(1, 0.0);
  add_rounded_weights(upload_f32(device, x, {1, 2}, DType::f32, "x"), m, slack);
  EXPECT_EQ(slack[0], 0);
  add_rounded_weights(upload_f32(device, x, {1, 2}, DType::bf16, "x"), m, slack);
  EXPECT_EQ(slack[0], 14 * 0x1p-8);
  slack[0] = 0;
  add_rounded_weights(upload_f32(device, x, {1, 2}, DType::f16, "x"), m, slack);
  EXPECT_EQ(slack[0], 14 * 0x1p-11 + 6 * 0x1p-25);
}

}  // namespace
}  // namespace h3::contract
