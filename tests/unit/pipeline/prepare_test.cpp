#include "pipeline/prepare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "backends/list.h"
#include "backends/ref/ref_ops.h"
#include "base/context.h"
#include "base/error.h"
#include "ops/plan_maker.h"
#include "pipeline/engine.h"
#include "tests/support/temp_folder.h"
#include "tests/support/toy_model.h"

namespace h3 {
namespace {

// Two candidates for every matmul, the second faster or not.
class FakeTrial final : public MatmulTrial {
 public:
  FakeTrial(const Linear& weight, double second) : weight_(weight), second_(second) {}
  int candidates() const override { return 2; }
  double run(int candidate) override { return candidate == 0 ? 1.0 : second_; }
  std::vector<float> result() override { return {1, 2, 3}; }
  std::vector<PlanChoice> choices(int candidate) override {
    return {{strf("%lldx%lld", static_cast<long long>(weight_.in), static_cast<long long>(weight_.out)),
             0,
             0,
             {static_cast<std::byte>(candidate)}}};
  }

 private:
  const Linear& weight_;
  double second_;
};

class FakeMaker final : public PlanMaker {
 public:
  std::vector<std::pair<std::string, std::string>> key() const override { return {{"driver", driver}, {"sm", "90"}}; }
  std::unique_ptr<MatmulTrial> try_matmul(const Linear& weight, int64_t, MatmulTrial*) override {
    return std::make_unique<FakeTrial>(weight, second);
  }
  std::vector<PlanChoice> attention_plans() override {
    return {{"attention 100", 99, 100, {std::byte{7}}}, {"attention 5", 4, 5, {std::byte{8}}}};
  }
  void use(std::shared_ptr<const PlanChoices> choices) override { used = std::move(choices); }

  std::string driver = "13.0";
  double second = 0.5;
  std::shared_ptr<const PlanChoices> used;
};

class PrepareTest : public ::testing::Test {
 protected:
  PrepareTest() {
    OpenOptions options;
    options.paths = {testing::kToyModel};
    files_ = open_model_files(options);
  }
  const Component& dit() const { return *files_.find(Role::dit); }
  PlanPackage prepare(std::vector<int64_t> rows = {100, 65}) {
    return prepare_plans({*ops_, &maker_, dit(), Compute::f32, std::move(rows), {}}, Control());
  }
  bool adopt(const PlanPackage& package, PlanMaker* maker) {
    lines_.clear();
    return adopt_plans(*ops_, maker, package, "plans.h3p", Compute::f32, dit());
  }
  std::string refusal(const PlanPackage& package) {
    try {
      adopt(package, &maker_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::data);
      return error.what();
    }
    return "";
  }

  ThreadPool pool_{2};
  std::vector<std::string> lines_;
  Log log_{[this](LogLevel, const std::string& line) { lines_.push_back(line); }};
  Context context_{pool_, log_};
  std::unique_ptr<Ops> ops_ = make_backend("ref", context_);
  FakeMaker maker_;
  ModelFiles files_;
};

TEST_F(PrepareTest, OnePackageHoldsForEveryBlock) {
  const PlanPackage package = prepare();
  // qkv, out, fc1 and fc2 of one block, in two buckets.
  EXPECT_EQ(package.matmuls.size(), 8u);
  ASSERT_EQ(package.attentions.size(), 1u) << "of other lengths than those asked for";
  EXPECT_EQ(package.attentions[0].upto, 100);
  std::vector<std::string> names;
  for (const PlanPackage::Parameter& parameter : package.parameters) names.push_back(parameter.name);
  for (const char* name : {"norm1.weight", "attn.qkv_proj.weight", "attn.q_norm.weight", "mlp.fc2.weight"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
  const Json& replays = package.report.at("replays");
  ASSERT_EQ(replays.size(), 4u);  // two lengths, one and two times each
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(replays.at(i).at("rows").as_int(), i < 2 ? 100 : 65);
    EXPECT_EQ(replays.at(i).at("times").as_int(), static_cast<int64_t>(1 + i % 2));
    EXPECT_EQ(replays.at(i).at("rel_l2").as_double(), 0);
  }
  EXPECT_EQ(maker_.used, nullptr) << "left in use";
  EXPECT_TRUE(adopt(PlanPackage::parse(package.bytes(), "plans.h3p"), &maker_));
  EXPECT_TRUE(lines_.empty());
  ASSERT_NE(maker_.used, nullptr);
  EXPECT_EQ(maker_.used->matmuls.size(), 8u);
  EXPECT_EQ(maker_.used->attentions.size(), 1u);
}

TEST_F(PrepareTest, FirstProposalsAreNotStored) {
  maker_.second = 0.99;
  EXPECT_TRUE(prepare().matmuls.empty());
}

TEST_F(PrepareTest, AnotherKeyFallsBackWithOneLine) {
  const PlanPackage package = prepare();
  maker_.use(std::make_shared<PlanChoices>());
  maker_.driver = "13.1";
  EXPECT_FALSE(adopt(package, &maker_));
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0], "the plans in plans.h3p are not used: made for driver 13.0, this is 13.1");
  EXPECT_EQ(maker_.used, nullptr);
  maker_.driver = "13.0";
  for (const char* field : {"width", "program", "shape", "sm"}) {
    PlanPackage other = package;
    for (auto& [name, value] : other.key) {
      if (name == field) value += "x";
    }
    EXPECT_FALSE(adopt(other, &maker_)) << field;
    ASSERT_EQ(lines_.size(), 1u) << field;
    EXPECT_NE(lines_[0].find(field), std::string::npos) << lines_[0];
  }
  PlanPackage more = package;
  more.key.emplace_back("moon", "full");
  EXPECT_FALSE(adopt(more, &maker_));
  EXPECT_EQ(lines_.size(), 1u);
  EXPECT_FALSE(adopt(package, nullptr));
  EXPECT_EQ(lines_.size(), 1u);
}

TEST_F(PrepareTest, NamesBindBothWays) {
  const PlanPackage package = prepare();
  PlanPackage less = package, more = package, other = package;
  less.parameters.pop_back();
  const std::string missing = package.parameters.back().name;
  EXPECT_NE(refusal(less).find("knows no " + missing), std::string::npos) << refusal(less);
  more.parameters.push_back({"attn.gate.weight", "bf16", {5376}});
  EXPECT_NE(refusal(more).find("attn.gate.weight, which the blocks of"), std::string::npos) << refusal(more);
  other.parameters[0].dims[0] += 1;
  EXPECT_NE(refusal(other).find(other.parameters[0].name), std::string::npos) << refusal(other);
  other = package;
  other.parameters[1].format = "q9";
  EXPECT_NE(refusal(other).find("q9"), std::string::npos) << refusal(other);
}

TEST_F(PrepareTest, WhatCannotBePreparedIsRefused) {
  try {
    prepare_plans({*ops_, nullptr, dit(), Compute::f32, {100}, {}}, Control());
    FAIL() << "a host has no plans to try";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::usage);
    EXPECT_NE(std::string(error.what()).find("--device cuda:0"), std::string::npos) << error.what();
  }
  EXPECT_THROW(prepare({63}), Error);
  EXPECT_THROW(prepare({300000}), Error);
}

// A request whose model the plans do not fit is refused every time, and leaves no plans in use.
TEST_F(PrepareTest, PlansOfAnotherModelStayRefused) {
  struct Planned final : RefOps {
    using RefOps::RefOps;
    PlanMaker* plan_maker() override { return &maker; }
    FakeMaker maker;
  };
  Planned ops(context_);
  PlanPackage package = prepare();
  package.parameters.pop_back();
  const TempFolder folder;
  EngineOptions options;
  options.open.paths = {testing::kToyModel};
  options.prepared = folder / "plans.h3p";
  options.keep = true;
  package.write(options.prepared);
  Engine engine(context_, ops, options);
  Request request;
  request.prompt = "a red ball";
  request.width = request.height = 64;
  request.frames = 5;
  request.steps = 1;
  request.precision = "f32";
  for (int turn = 0; turn < 2; ++turn) {
    ops.maker.used = std::make_shared<PlanChoices>();
    EXPECT_THROW(engine.run(resolve(request, engine.facts()), Control()), Error) << turn;
    EXPECT_EQ(ops.maker.used, nullptr) << turn;
  }
}

}  // namespace
}  // namespace h3
