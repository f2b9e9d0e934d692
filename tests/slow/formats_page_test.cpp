// docs/formats.md starts with what the command prints; the scores behind it are measured by hand.
#include <gtest/gtest.h>

#include "base/file_map.h"
#include "bench/formats.h"
#include "tests/support/full_demo.h"

namespace h3 {
namespace {

TEST(FormatsPage, IsWhatTheCommandPrints) {
  const std::string demo = testing::full_demo();
  if (demo.empty()) GTEST_SKIP() << "no demo_model beside H3_GOLDEN";
  Log log;
  const std::string page = formats_page({demo}, 0, log);
  const std::string file = read_file(std::string(H3_SOURCE_DIR) + "/docs/formats.md");
  EXPECT_EQ(file.substr(0, page.size()), page) << "run: h3 bench formats DEMO";
}

}  // namespace
}  // namespace h3
