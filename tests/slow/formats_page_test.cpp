// docs/formats.md starts with what the command prints; the scores behind it are measured by hand.
#include <gtest/gtest.h>

#include "base/file_map.h"
#include "bench/formats.h"
#include "store/embedded.h"

namespace h3 {
namespace {

TEST(FormatsPage, IsWhatTheCommandPrints) {
  if (embedded_demo().empty()) GTEST_SKIP() << "built without the demo model";
  Log log;
  const std::string page = formats_page(0, log);
  const std::string file = read_file(std::string(H3_SOURCE_DIR) + "/docs/formats.md");
  EXPECT_EQ(file.substr(0, page.size()), page) << "run: h3 bench formats";
}

}  // namespace
}  // namespace h3
