// Every length of the frame grid that the model was trained on: rendered with the demo model on the host (and on a card
// where there is one), planned at the release's largest canvas.
#include <gtest/gtest.h>

#include <cmath>

#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"
#include "pipeline/engine.h"

namespace h3 {
namespace {

constexpr int kFirst = 5, kStep = 17, kLast = 362;

class GridLength : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
  Log log_;
  Context context_{pool_, log_};

  static Request request_of(int width, int height, int frames) {
    Request request;
    request.prompt = "a red ball";
    request.width = width;
    request.height = height;
    request.frames = frames;
    request.steps = 1;
    return request;
  }
};

TEST_F(GridLength, EveryOneIsRendered) {
  std::vector<std::string> names = {"cpu"};
  for (const BackendInfo& info : list_backends(context_)) {
    if (info.refused.empty() && info.name.rfind("cuda", 0) == 0) names.push_back(info.name);
  }
  for (const std::string& name : names) {
    const std::unique_ptr<Ops> ops = make_backend(name, context_);
    EngineOptions options;
    options.keep = true;
    Engine engine(context_, *ops, options);
    for (int frames = kFirst; frames <= kLast; frames += kStep) {
      const Resolved resolved = resolve(request_of(32, 32, frames), engine.facts());
      ASSERT_EQ(resolved.frames, frames);
      int shown = 0;
      bool finite = true;
      RunHooks hooks;
      hooks.on_frames = [&](const FrameRun& run) {
        EXPECT_EQ(run.first, shown);
        shown += run.frames;
        const int64_t count = int64_t{3} * run.frames * run.height * run.width;
        for (int64_t i = 0; i < count; ++i) finite = finite && std::isfinite(run.rgb[i]);
      };
      engine.run(resolved, Control(), hooks);
      EXPECT_EQ(shown, frames) << name;
      EXPECT_TRUE(finite) << name << ", " << frames << " frames";
    }
  }
}

TEST_F(GridLength, EveryOneIsPlannedAtReleaseSize) {
  const std::unique_ptr<Ops> ops = make_backend("cpu", context_);
  EngineOptions options;
  options.synthetic_layers = 2;
  options.budget.mode = PlanMode::resident;
  options.budget.ram = int64_t{1} << 50;
  Engine engine(context_, *ops, options);
  int64_t last = 0;
  for (int frames = kFirst; frames <= kLast; frames += kStep) {
    const Placement placement = engine.placement(resolve(request_of(1344, 768, frames), engine.facts()));
    for (const PlacementPhase& phase : placement.phases) {
      if (phase.name != "denoise") continue;
      EXPECT_GT(phase.bytes, last) << frames;
      last = phase.bytes;
    }
  }
  EXPECT_GT(last, int64_t{8} << 30);  // 107 000 rows of 21504 values and more
}

}  // namespace
}  // namespace h3
