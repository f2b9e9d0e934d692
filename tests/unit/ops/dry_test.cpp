// A dry run books what a run holds and does, and touches nothing.
#include "ops/dry.h"

#include <gtest/gtest.h>

#include "base/context.h"

namespace h3 {
namespace {

DryRules rules() {
  DryRules rules;
  rules.name = "paper";
  rules.scratch = 100;
  rules.linear = [](const LinearSpec& spec) {
    LinearPlan plan;
    plan.kernel = "paper_" + std::to_string(spec.weight.cols);
    plan.refusals = {"better: not on paper"};
    plan.bytes = spec.weight.rows * spec.weight.cols;
    plan.row_scratch = 10;
    plan.scratch_rows = 8;
    plan.stored = spec.label == "stored";
    return plan;
  };
  rules.conv_bytes = [](const ConvSpec& spec) { return static_cast<int64_t>(spec.weight.size()) * 4; };
  rules.attention_scratch = [](const AttentionArgs& args) { return args.k.bytes(); };
  return rules;
}

class DryTest : public testing::Test {
 protected:
  std::unique_ptr<Linear> linear(int64_t out, int64_t in, const char* label = "block.0.mlp") {
    values_.assign(static_cast<size_t>(out * in), 0.5f);
    StoredMatrix stored;
    stored.rows = out;
    stored.cols = in;
    stored.data = std::as_bytes(std::span(values_));
    LinearSpec spec;
    spec.label = label;
    spec.weight.append(stored, 0, out);
    return ops_->make_linear(std::move(spec));
  }
  const StageBooking& stage(const std::string& name) {
    for (const StageBooking& booking : ops_->booking().stages) {
      if (booking.stage == name) return booking;
    }
    ADD_FAILURE() << name;
    return ops_->booking().stages[0];
  }

  std::vector<float> values_;
  ThreadPool pool_{1};
  Log log_;
  Context context_{pool_, log_};
  std::unique_ptr<DryOps> ops_ = make_dry_ops(context_, rules());
};

TEST_F(DryTest, MemoryIsThatOfTheLargestMoment) {
  ops_->begin_stage("load a");
  std::unique_ptr<Linear> weight = linear(30, 20);
  ops_->begin_stage("work");
  {
    const Tensor x(ops_->device(), DType::f32, {4, 20}, "x"), y(ops_->device(), DType::f32, {4, 30}, "y");
    ops_->linear(*weight, x, y);
  }
  weight.reset();
  ops_->begin_stage("rest");
  EXPECT_EQ(stage("load a").held, 100 + 600);
  EXPECT_EQ(stage("work").peak, 100 + 600 + 4 * 20 * 4 + 4 * 30 * 4);  // 40 bytes of scratch fit what is there
  EXPECT_EQ(stage("work").weights, 600);
  EXPECT_EQ(stage("rest").peak, 100);
}

TEST_F(DryTest, ScratchGrowsWithTheRowsUpToItsLimit) {
  const std::unique_ptr<Linear> weight = linear(3, 2);
  const int64_t count = ops_->device().allocations();
  for (const int64_t rows : {2, 1000}) {
    const Tensor x(ops_->device(), DType::f32, {rows, 2}, "x"), y(ops_->device(), DType::f32, {rows, 3}, "y");
    ops_->linear(*weight, x, y);
  }
  EXPECT_EQ(ops_->booking().scratch, 100);  // 8 rows at most
  EXPECT_EQ(ops_->device().allocations(), count + 4);
}

TEST_F(DryTest, WorkIsBookedByKindAndShape) {
  ops_->begin_stage("work");
  const std::unique_ptr<Linear> weight = linear(3, 2);
  const Tensor x(ops_->device(), DType::f32, {5, 2}, "x"), y(ops_->device(), DType::f32, {5, 3}, "y");
  for (int i = 0; i < 7; ++i) ops_->linear(*weight, x, y);
  const Tensor q(ops_->device(), DType::bf16, {6, 4, 8}, "q"), k(ops_->device(), DType::bf16, {9, 4, 8}, "k");
  AttentionArgs args;
  args.q = args.out = q;
  args.k = args.v = k;
  ops_->attention(args);
  const WorkByKind& work = stage("work").work;
  EXPECT_EQ(work.at("linear f32 2x3").calls, 7);
  EXPECT_EQ(work.at("linear f32 2x3").amount, 7 * 2.0 * 5 * 2 * 3);
  EXPECT_EQ(work.at("attention bf16 8").amount, 4.0 * 6 * 9 * 32);
  EXPECT_EQ(work.at("pack f32 f32").amount, 6);
  ASSERT_EQ(ops_->booking().shapes.size(), 2u);
  EXPECT_EQ(ops_->booking().shapes[0].shape, "5 x 2 -> 3");
  EXPECT_EQ(ops_->booking().shapes[0].kernel, "paper_2");
  EXPECT_EQ(ops_->booking().shapes[0].calls, 7);
  EXPECT_EQ(ops_->booking().shapes[0].refusals.size(), 1u);
  EXPECT_EQ(ops_->booking().shapes[1].shape, "6 x 9, 4 heads of 8");
}

// Rates are measured with weights of the model's shapes, long edges cut; a call on a longer one counts as several.
TEST_F(DryTest, CallsCountInWeightsOfTheMeasurement) {
  ops_->begin_stage("work");
  const std::unique_ptr<Linear> weight = linear(2048, 64);
  const Tensor x(ops_->device(), DType::f32, {5, 64}, "x"), y(ops_->device(), DType::f32, {5, 2048}, "y");
  for (int i = 0; i < 3; ++i) ops_->linear(*weight, x, y);
  EXPECT_EQ(stage("work").work.at("linear f32 64x1024").calls, 3 * 2.0);
  EXPECT_EQ(stage("work").work.at("linear f32 64x1024").amount, 3 * 2.0 * 5 * 64 * 2048);
  const MeasuredWeight& measured = ops_->booking().weights.at("linear f32 64x1024");
  EXPECT_EQ(measured.in, 64);
  EXPECT_EQ(measured.out, 1024);

  ConvSpec spec;
  spec.in = 512;
  spec.out = 3;
  spec.kernel[2] = 7;
  spec.pad_before[2] = spec.pad_after[2] = 3;
  spec.weight.assign(512 * 3 * 7, 1.0f);
  const std::unique_ptr<Conv> conv = ops_->make_conv(std::move(spec));
  const Tensor a(ops_->device(), DType::f32, {512, 40}, "a"), b(ops_->device(), DType::f32, {3, 40}, "b");
  ops_->conv(*conv, a, b);
  EXPECT_EQ(stage("work").work.at("pack conv").amount, 512 * 3 * 7);
  EXPECT_EQ(stage("work").work.at("conv f32 256x3x7").calls, 2);
  EXPECT_EQ(stage("work").work.at("conv f32 256x3x7").amount, 2.0 * 512 * 3 * 7 * 40);
}

// A weight that stays in its format is measured with rows of its own: their unpacking is part of every call.
TEST_F(DryTest, StoredWeightsAreMeasuredWithTheirOwnRows) {
  ops_->begin_stage("work");
  const std::unique_ptr<Linear> weight = linear(1536, 64, "stored");
  const Tensor x(ops_->device(), DType::f32, {5, 64}, "x"), y(ops_->device(), DType::f32, {5, 1536}, "y");
  ops_->linear(*weight, x, y);
  EXPECT_EQ(stage("work").work.at("linear f32 f32 64x1024").calls, 1.5);
  EXPECT_EQ(ops_->booking().weights.at("linear f32 f32 64x1024").stored.rows, 1024);
}

// Everything that is taken is written for the first time, also what is given back.
TEST_F(DryTest, MemoryTakenIsWork) {
  ops_->begin_stage("load");
  std::unique_ptr<Linear> weight = linear(30, 20);
  weight.reset();
  weight = linear(30, 20);
  ops_->begin_stage("rest");
  EXPECT_EQ(stage("load").work.at("touch").amount, 2 * 600);
  EXPECT_EQ(stage("rest").work.count("touch"), 0u);
}

TEST(DryInt8, ErrorOfRowsIsThatOfTheirGrid) {
  // 127 is the scale of the row; 0.5 lies between two steps, the others on them.
  const std::vector<float> values = {127, 0.5f, 1, 2};
  StoredMatrix stored;
  stored.rows = 1;
  stored.cols = 4;
  stored.data = std::as_bytes(std::span(values));
  MatrixSource source;
  source.append(stored, 0, 1);
  EXPECT_NEAR(int8_weight_error(source), 0.5 / std::sqrt(127.0 * 127 + 0.25 + 1 + 4), 1e-6);
  EXPECT_EQ(int8_weight_error(MatrixSource()), 0);
}

}  // namespace
}  // namespace h3
