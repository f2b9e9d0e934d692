// docs/formats.md starts with what the command prints; the scores behind it are measured by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "base/file_map.h"
#include "bench/formats.h"
#include "tests/support/full_demo.h"

namespace h3 {
namespace {

// Errors are printed with two digits, and kernels of another instruction set move the second: a tenth is allowed.
bool same_figure(const std::string& a, const std::string& b) {
  char *a_end, *b_end;
  const double x = std::strtod(a.c_str(), &a_end), y = std::strtod(b.c_str(), &b_end);
  const bool figures = *a_end == 0 && *b_end == 0 && a.find('e') != std::string::npos;
  return figures && std::abs(x - y) <= 0.1 * std::max(std::abs(x), std::abs(y));
}

TEST(FormatsPage, IsWhatTheCommandPrints) {
  const std::string demo = testing::full_demo();
  if (demo.empty()) GTEST_SKIP() << "no demo_model beside H3_GOLDEN";
  Log log;
  std::istringstream printed(formats_page({demo}, 0, log));
  std::istringstream file(read_file(std::string(H3_SOURCE_DIR) + "/docs/formats.md"));
  std::string ours, theirs;
  for (int line = 1; std::getline(printed, ours); ++line) {
    ASSERT_TRUE(std::getline(file, theirs)) << "line " << line << ": run: h3 bench formats DEMO";
    std::istringstream our_words(ours), their_words(theirs);
    std::string a, b;
    while (our_words >> a) {
      their_words >> b;
      EXPECT_TRUE(a == b || same_figure(a, b)) << "line " << line << ": " << theirs << "\nnow: " << ours;
    }
    EXPECT_FALSE(their_words >> b) << "line " << line << ": " << theirs << "\nnow: " << ours;
  }
}

}  // namespace
}  // namespace h3
