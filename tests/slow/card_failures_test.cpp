// Whatever allocation fails on a card, or staging on the host beside it, ends one run only. Cards only.
#include <gtest/gtest.h>

#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"
#include "pipeline/engine.h"

namespace h3 {
namespace {

class CardFailures : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const BackendInfo& info : list_backends(context_)) {
      if (!ops_ && info.refused.empty() && info.name.rfind("cuda", 0) == 0) ops_ = make_backend(info.name, context_);
    }
    if (!ops_) GTEST_SKIP() << "no card";
  }
  std::unique_ptr<Engine> engine(PlanMode mode) {
    EngineOptions options;
    options.synthetic_layers = 4;
    options.budget.mode = mode;
    return std::make_unique<Engine>(context_, *ops_, options);
  }
  std::vector<float> run(Engine& engine) {
    Request request;
    request.prompt = "a red ball";
    request.width = request.height = 64;
    request.frames = 5;
    request.steps = 2;
    request.vae_precision = "f16";
    std::vector<float> frames;
    RunHooks hooks;
    hooks.on_frames = [&](const FrameRun& run) {
      frames.insert(frames.end(), run.rgb, run.rgb + int64_t{3} * run.frames * run.height * run.width);
    };
    engine.run(resolve(request, engine.facts()), Control(), hooks);
    return frames;
  }

  ThreadPool pool_;
  Log log_;
  Context context_{pool_, log_};
  std::unique_ptr<Ops> ops_;
};

TEST_F(CardFailures, AnyAllocationEndsOneRunOnly) {
  for (const PlanMode mode : {PlanMode::resident, PlanMode::stream}) {
    const std::unique_ptr<Engine> used = engine(mode);
    Device& device = ops_->device();
    const std::vector<float> expected = run(*used);
    ASSERT_FALSE(expected.empty());
    const int64_t before = device.allocations();
    EXPECT_EQ(run(*used), expected);
    const int64_t count = device.allocations() - before, held = device.allocated_bytes();
    ASSERT_GT(count, 50);
    constexpr int64_t kPoints = 8;
    for (int64_t i = 0; i < kPoints; ++i) {
      const int64_t n = 1 + i * (count - 1) / (kPoints - 1);
      device.fail_allocation(n);
      try {
        run(*used);
        ADD_FAILURE() << "allocation " << n << " of " << count << " did not fail";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::memory) << error.what();
        EXPECT_NE(std::string(error.what()).find("planned failure"), std::string::npos) << error.what();
      }
      device.fail_allocation(0);
      if (i % 4 == 3) {
        EXPECT_EQ(run(*used), expected) << "after allocation " << n;
      }
    }
    used->release();
    EXPECT_LE(device.allocated_bytes(), held) << "after " << kPoints << " failures";
  }
}

// --ram counts page-locked stages.
TEST_F(CardFailures, StagingAboveTheCapOnRamIsRefused) {
  Device& device = ops_->device();
  device.set_host_cap(device.host_bytes() + (int64_t{1} << 20));
  EXPECT_THROW(device.staging(int64_t{2} << 20), Error);
  const std::shared_ptr<std::byte> small = device.staging(int64_t{1} << 19);
  EXPECT_NE(small, nullptr);
  device.set_host_cap(0);
}

}  // namespace
}  // namespace h3
