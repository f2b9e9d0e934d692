#include "base/nearest.h"

#include <gtest/gtest.h>

#include <vector>

namespace h3 {
namespace {

TEST(Nearest, FindsTypingErrors) {
  const std::vector<std::string> known = {"--frames", "--seed", "--steps", "--size"};
  EXPECT_EQ(nearest("--framse", known), "--frames");
  EXPECT_EQ(nearest("--sede", known), "--seed");
  EXPECT_EQ(nearest("--stps", known), "--steps");
  EXPECT_EQ(nearest("--frobnicate", known), "");
  EXPECT_EQ(nearest("", known), "");
  EXPECT_EQ(nearest(std::string(1000, 'a'), known), "");
  EXPECT_EQ(suggestion("--seeed", known), " (did you mean --seed?)");
  EXPECT_EQ(suggestion("zzz", known), "");
}

}  // namespace
}  // namespace h3
