// The comparer is fed with planted faults: each must be caught.
#include "base/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace h3 {
namespace {

const std::vector<float> kWant = {1, -3, 2, 0.5f, -4, 8};
const Limits kLimits = {.rel_l2 = 1e-5, .max_abs = 1e-4};

TEST(Compare, AcceptsEqualAndClose) {
  EXPECT_TRUE(compare_values(kWant, kWant, kLimits).passed);
  std::vector<float> close = kWant;
  close[2] += 1e-6f;
  EXPECT_TRUE(compare_values(close, kWant, kLimits).passed);
}

TEST(Compare, CatchesEveryPlantedFault) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (float fault : {nan, inf, -inf, -30.0f, 3.0f, 0.0f}) {
    std::vector<float> got = kWant;
    got[1] = fault;
    const Comparison result = compare_values(got, kWant, kLimits);
    EXPECT_FALSE(result.passed) << fault;
    EXPECT_FALSE(result.failure.empty());
  }
  std::vector<float> swapped = kWant;
  std::swap(swapped[0], swapped[3]);
  EXPECT_FALSE(compare_values(swapped, kWant, kLimits).passed);
  EXPECT_FALSE(compare_values(std::vector<float>(kWant.size(), 0.0f), kWant, kLimits).passed);
}

TEST(Compare, NanInTheExpectationFails) {
  std::vector<float> want = kWant;
  want[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(compare_values(want, want, kLimits).passed);
}

TEST(Compare, RefusesWrongShapeAndNothing) {
  EXPECT_FALSE(compare_values(std::vector<float>(5, 1.0f), kWant, kLimits).passed);
  EXPECT_FALSE(compare_values({}, {}, kLimits).passed);
  EXPECT_FALSE(compare_values(kWant, kWant, Limits{}).passed) << "no limit asked";
}

TEST(Compare, ZeroExpectationUsesTheAbsoluteNorm) {
  const std::vector<float> zero(4, 0.0f), tiny(4, 1e-3f);
  EXPECT_FALSE(compare_values(tiny, zero, {.rel_l2 = 1e-5}).passed);
  EXPECT_TRUE(compare_values(zero, zero, {.rel_l2 = 1e-5}).passed);
}

}  // namespace
}  // namespace h3
