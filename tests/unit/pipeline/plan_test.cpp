// The plan of the embedded demo model against the run itself, and its refusals.
#include "pipeline/plan.h"

#include <gtest/gtest.h>

#include "backends/list.h"
#include "base/error.h"
#include "pipeline/engine.h"
#include "pipeline/session.h"

namespace h3 {
namespace {

class PlanTest : public testing::Test {
 protected:
  Resolved resolved(const std::string& precision) const {
    Request request;
    request.prompt = "a red ball";
    request.steps = 3;
    request.precision = precision;
    return session_->resolve(request);
  }

  Log log_;
  SessionOptions options_ = [] {
    SessionOptions options;
    options.device = "cpu";
    options.threads = 1;
    return options;
  }();
  std::unique_ptr<Session> session_ = std::make_unique<Session>(options_, log_);
};

// The device counts what the operations hold: on the host the plan must meet that count closely.
TEST_F(PlanTest, DeviceMemoryIsThatOfTheRun) {
  for (const char* precision : {"f32", "bf16"}) {
    ThreadPool pool(1);
    Context context{pool, log_};
    const std::unique_ptr<Ops> ops = make_backend("cpu", context);
    Engine engine(context, *ops, {});
    const Resolved request = resolved(precision);
    PlanOptions options;
    options.time = false;
    const RunPlan plan = plan_run(engine, request, options);
    int64_t planned = plan.ram.peak;
    for (const PlanPart& part : plan.ram.parts) {
      if (part.name == "program" || part.name == "frames, sound and encoder") planned -= part.bytes;
    }
    ops->device().reset_peak();
    engine.run(request, Control());
    const double measured = static_cast<double>(ops->device().peak_bytes());
    // The floor covers what kernels round up to whole pages and panels, which only a tiny model notices.
    EXPECT_NEAR(static_cast<double>(planned), measured, std::max(0.1 * measured, 8.0 * (1 << 20))) << precision;
  }
}

TEST_F(PlanTest, ShapesNameKernelsAndRefusals) {
  const RunPlan plan = session_->plan(resolved("bf16"));
  ASSERT_FALSE(plan.shapes.empty());
  bool refused = false, block = false;
  for (const ShapeUse& use : plan.shapes) {
    if (use.op != "linear") continue;
    EXPECT_FALSE(use.kernel.empty());
    refused = refused || !use.refusals.empty();
    if (use.label == "dit.blocks.0.mlp.fc1") block = use.calls == 18 && use.kernel.rfind("bf16_", 0) == 0;
  }
  EXPECT_TRUE(refused);
  EXPECT_TRUE(block) << "six blocks, three evaluations";
  EXPECT_GT(plan.seconds, 0);
  EXPECT_NE(plan.to_text(true).find("not int8"), std::string::npos);
  EXPECT_EQ(plan.to_json().at("shapes").items().size(), plan.shapes.size());
}

TEST_F(PlanTest, TheOracleBesideARunTakesItsMemory) {
  const RunPlan plain = session_->plan(resolved("f32"));
  options_.shadow = true;
  Session shadowed(options_, log_);
  const RunPlan plan = shadowed.plan(resolved("f32"));
  EXPECT_GT(plan.ram.peak, plain.ram.peak);
  EXPECT_EQ(plan.seconds, 0);
}

TEST_F(PlanTest, AForcedKernelIsPlanned) {
  options_.device = "cpu,linear=f32_scalar";
  Session forced(options_, log_);
  bool used = false;
  for (const ShapeUse& use : forced.plan(resolved("f32")).shapes) used = used || use.kernel == "f32_scalar";
  EXPECT_TRUE(used);
}

TEST_F(PlanTest, WhatDoesNotFitIsRefusedWithTheNumbers) {
  options_.ram_limit = 16 << 20;
  Session small(options_, log_);
  const Resolved request = resolved("f32");
  const RunPlan plan = small.plan(request);
  EXPECT_FALSE(plan.ram.fits());
  try {
    check_plan(plan, request);
    FAIL() << "not refused";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), Code::memory);
    const std::string parts[] = {"16.0 MiB", "--ram", "bf16", bytes_text(plan.ram.peak)};
    for (const std::string& part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  check_plan(session_->plan(request), request);
}

TEST(PlanText, SizesAndTimes) {
  EXPECT_EQ(bytes_text(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(duration_text(200), "3 min 20 s");
  EXPECT_EQ(duration_text(7800), "2 h 10 min");
}

}  // namespace
}  // namespace h3
