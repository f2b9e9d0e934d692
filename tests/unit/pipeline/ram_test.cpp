// --ram is a hard cap on what a run holds.
#include <gtest/gtest.h>

#include <string>

#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"
#include "pipeline/engine.h"
#include "pipeline/plan.h"
#include "tests/support/toy_model.h"

namespace h3 {
namespace {

class RamTest : public ::testing::Test {
 protected:
  void run(int64_t limit, int frames) {
    EngineOptions options;
    options.open.paths = {testing::kToyModel};
    options.ram_limit = limit;
    Engine engine(context_, *ops_, options);
    Request request;
    request.prompt = "a red ball";
    request.width = request.height = 64;
    request.frames = frames;
    request.steps = 2;
    engine.run(resolve(request, engine.facts()), Control());
  }

  ThreadPool pool_{2};
  Log log_;
  Context context_{pool_, log_};
  std::unique_ptr<Ops> ops_ = make_backend("cpu", context_);
};

TEST_F(RamTest, ARunThatWouldPassTheCapEndsAndTheNextOneWorks) {
  if (anonymous_bytes() == 0) GTEST_SKIP() << "the system does not say what memory is anonymous";
  run(0, 5);
  try {
    run(anonymous_bytes() + (int64_t{1} << 20), 39);
    FAIL() << "a run in 1 MiB";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::memory) << error.what();
    const std::string text = error.what();
    EXPECT_NE(text.find("--ram"), std::string::npos) << text;
    EXPECT_NE(text.find("MiB"), std::string::npos) << text;
  }
  run(anonymous_bytes() + (int64_t{1} << 30), 5);
  run(0, 39);
}

TEST(Ram, MoreThanTheLimitIsAnError) {
  check_ram(0);
  check_ram(int64_t{1} << 50);
  if (anonymous_bytes() < 4096) GTEST_SKIP() << "the system does not say what memory is anonymous";
  EXPECT_THROW(check_ram(4096), Error);
}

}  // namespace
}  // namespace h3
