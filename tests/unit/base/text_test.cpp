#include "base/text.h"

#include <gtest/gtest.h>

namespace h3 {
namespace {

TEST(Text, LowerTouchesAsciiLettersAlone) {
  EXPECT_EQ(lower("AbZ @[`{ 09"), "abz @[`{ 09");
  EXPECT_EQ(lower("\xc3\x84"), "\xc3\x84");
  EXPECT_EQ(lower('Q'), 'q');
  EXPECT_EQ(lower(""), "");
}

TEST(Text, JoinedHasSeparatorsBetweenWordsOnly) {
  EXPECT_EQ(joined({}, ", "), "");
  EXPECT_EQ(joined({"a"}, ", "), "a");
  EXPECT_EQ(joined({"a", "b", "c"}, ", "), "a, b, c");
}

}  // namespace
}  // namespace h3
