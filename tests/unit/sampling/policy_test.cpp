#include "sampling/policy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backends/ref/ref_ops.h"
#include "base/context.h"
#include "base/error.h"
#include "base/file_map.h"
#include "base/json.h"
#include "pipeline/step_runner.h"

namespace h3 {
namespace {

constexpr int64_t kRows = 6, kHidden = 8, kLayers = 4, kVideo = 5, kAudio = 3;

// tools/make_policy_traces.py, value().
float value(uint64_t seed, uint64_t index) {
  uint64_t z = seed * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u + 0x94d049bb133111ebu;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return static_cast<float>((z ^ z >> 31) >> 40) / 16777216.0f - 0.5f;
}

// The model of the traces: what enters block 0, what its parts add, the velocities it gives.
class World final : public DitSession {
 public:
  World(Ops& ops, uint64_t seed, std::vector<float> amplitudes)
      : ops_(ops),
        seed_(seed),
        amplitudes_(std::move(amplitudes)),
        rows_(ops.device(), DType::f32, {kRows, kHidden}, "rows"),
        probe_(ops.device(), DType::f32, {kRows, kHidden}, "probe") {}

  std::vector<float> many(int stream, int step, int64_t count) const {
    std::vector<float> out;
    for (int64_t i = 0; i < count; ++i) {
      out.push_back(value(seed_ + static_cast<uint64_t>(stream), static_cast<uint64_t>(1000 * step + i)));
    }
    return out;
  }
  std::vector<float> moving(int stream, int step) const {
    const float size = amplitudes_[static_cast<size_t>(step) % amplitudes_.size()];
    std::vector<float> base = many(stream, 0, kRows * kHidden);
    const std::vector<float> change = many(stream + 1, step, kRows * kHidden);
    for (size_t i = 0; i < base.size(); ++i) base[i] = 2 * base[i] + size * change[i];
    return base;
  }
  void set(const View& view, const std::vector<float>& values) { ops_.device().upload(values.data(), view); }
  void add(const std::vector<float>& values) {
    float* rows = host<float>(rows_.view);
    for (size_t i = 0; i < values.size(); ++i) rows[i] += values[i];
  }

  void embed(int evaluation, const View&, const View&) override {
    step_ = evaluation;
    ++embedded;
    set(rows_, many(1, step_, kRows * kHidden));
  }
  void blocks(int64_t first, int64_t last) override {
    if (first == 0 && last > 0) add(moving(2, step_));
    if (first < last && last == kLayers) add(many(4, step_, kRows * kHidden));
  }
  void head(const View& video, const View& audio) override {
    set(video, many(9, step_, kVideo));
    set(audio, many(10, step_, kAudio));
  }
  View modulated_input() override {
    set(probe_, moving(5, step_));
    return probe_;
  }
  SparseReport sparse_report() override { return {}; }
  int64_t sparse_calls() const override { return 0; }
  const View& residual() const override { return rows_.view; }
  int64_t layers() const override { return kLayers; }
  int64_t bytes() const override { return 0; }
  int embedded = 0;

 private:
  Ops& ops_;
  uint64_t seed_;
  std::vector<float> amplitudes_;
  Tensor rows_, probe_;
  int step_ = 0;
};

double sum_of(const View& view) {
  double sum = 0;
  for (const float v : download_f32(view)) sum += static_cast<double>(v);
  return sum;
}

class PolicyTest : public ::testing::Test {
 protected:
  PolicyTest() : context_{pool_, log_}, ops_(make_ref_ops(context_)) {}

  static PolicyShape shape(int evaluations) {
    PolicyShape out;
    out.evaluations = evaluations;
    out.rows = kRows;
    out.hidden = kHidden;
    out.first_audio = 1;
    out.audio_rows = 2;
    out.first_video = 3;
    out.video_rows = 3;
    out.video_width = kVideo;
    out.audio_width = kAudio;
    return out;
  }

  // One request under a policy, evaluation by evaluation.
  class Request {
   public:
    Request(Ops& ops, const PolicySpec& spec, int evaluations, uint64_t seed, std::vector<float> amplitudes)
        : ops_(ops), world(ops, seed, std::move(amplitudes)) {
      PolicyShape dims = shape(evaluations);
      streams_ = spec.mode == "forecast" || spec.mode == "extrapolate";
      if (streams_) dims.video_rows = dims.audio_rows = 1;
      policy = make_policy(ops, spec, dims, make_schedule("linspace", {.evaluations = evaluations}));
      for (const int64_t width : {kVideo, kAudio}) {
        inputs_.emplace_back(ops.device(), DType::f32, std::initializer_list<int64_t>{1, width}, "input");
        velocities_.emplace_back(ops.device(), DType::f32, std::initializer_list<int64_t>{1, width}, "velocity");
      }
    }
    double step(int e) {
      world.set(inputs_[0], world.many(7, e, kVideo));
      world.set(inputs_[1], world.many(8, e, kAudio));
      run_step(world, *policy, e, {inputs_[0], inputs_[1]}, {velocities_[0], velocities_[1]});
      return streams_ ? sum_of(velocities_[0]) + 3 * sum_of(velocities_[1]) : sum_of(world.residual());
    }

   private:
    Ops& ops_;

   public:
    World world;
    std::unique_ptr<StepPolicy> policy;

   private:
    bool streams_ = false;
    std::vector<Tensor> inputs_, velocities_;
  };

  ThreadPool pool_{1};
  Log log_;
  Context context_;
  std::unique_ptr<Ops> ops_;
};

TEST_F(PolicyTest, StoredTracesOfAnIndependentImplementation) {
  const std::string path = std::string(H3_SOURCE_DIR) + "/tests/data/policy/traces.json";
  const Json traces = Json::parse(read_file(path), path);
  ASSERT_EQ(traces.items().size(), 18u);
  for (size_t number = 0; number < traces.items().size(); ++number) {
    const Json& trace = traces.items()[number];
    PolicySpec spec = parse_policy(trace.at("mode").as_string());
    for (const auto& [name, parameter] : trace.at("parameters").members())
      spec.parameters.at(name) = parameter.as_double();
    std::vector<float> amplitudes;
    for (const Json& a : trace.at("amplitudes").items()) amplitudes.push_back(static_cast<float>(a.as_double()));
    const int total = static_cast<int>(trace.at("evaluations").as_int());
    Request request(*ops_, spec, total, static_cast<uint64_t>(trace.at("seed").as_int()), amplitudes);
    for (int e = 0; e < total; ++e) {
      const size_t i = static_cast<size_t>(e);
      const double sum = request.step(e);
      const StepRecord& record = request.policy->records().at(i);
      ASSERT_STREQ(name_of(record.action), trace.at("actions").at(i).as_string().c_str()) << number << ", " << e;
      EXPECT_NEAR(sum, trace.at("sums").at(i).as_double(), 2e-5) << number << ", " << e;
      const Json& metric = trace.at("metrics").at(i);
      if (metric.is_null() || std::isnan(record.metric)) continue;
      EXPECT_NEAR(record.metric, metric.as_double(), 1e-5 * std::fabs(metric.as_double())) << number << ", " << e;
    }
  }
}

TEST_F(PolicyTest, AThresholdOfZeroRunsEverything) {
  for (const char* text : {"first-block:0,cap=1000", "teacache:0"}) {
    Request none(*ops_, parse_policy("none"), 12, 5, {0.001f}), cached(*ops_, parse_policy(text), 12, 5, {0.001f});
    for (int e = 0; e < 12; ++e) {
      EXPECT_EQ(none.step(e), cached.step(e)) << text;
      EXPECT_EQ(cached.policy->records().back().action, StepAction::run);
    }
  }
}

TEST_F(PolicyTest, TwoInterleavedRequestsAreTwoSeparateOnes) {
  for (const char* text : {"first-block", "forecast", "teacache", "extrapolate"}) {
    const auto alone = [&](uint64_t seed) {
      Request request(*ops_, parse_policy(text), 20, seed, {0.03f, 0.2f});
      std::vector<double> sums;
      for (int e = 0; e < 20; ++e) sums.push_back(request.step(e));
      return sums;
    };
    const std::vector<double> first = alone(1), second = alone(50);
    Request a(*ops_, parse_policy(text), 20, 1, {0.03f, 0.2f}), b(*ops_, parse_policy(text), 20, 50, {0.03f, 0.2f});
    for (int e = 0; e < 20; ++e) {
      EXPECT_EQ(a.step(e), first[static_cast<size_t>(e)]) << text;
      EXPECT_EQ(b.step(e), second[static_cast<size_t>(e)]) << text;
    }
  }
}

TEST_F(PolicyTest, AForecastSkipsTheWholeModel) {
  Request request(*ops_, parse_policy("forecast"), 15, 1, {1});
  for (int e = 0; e < 15; ++e) request.step(e);
  EXPECT_EQ(request.world.embedded, 7);
}

TEST_F(PolicyTest, ATraceReplacesTheRule) {
  PolicySpec spec = parse_policy("first-block");
  spec.trace = parse_trace("run, reuse  # comment\nrun reuse");
  Request request(*ops_, spec, 4, 1, {1});
  for (int e = 0; e < 4; ++e) request.step(e);
  EXPECT_EQ(request.policy->records()[1].action, StepAction::reuse);
  EXPECT_EQ(request.policy->records()[2].action, StepAction::run);
  EXPECT_STREQ(request.policy->records()[3].reason, "trace");
  EXPECT_EQ(trace_text(spec.trace), "run reuse run reuse");
  const auto refused = [&](const char* mode, const char* trace) {
    PolicySpec wrong = parse_policy(mode);
    wrong.trace = parse_trace(trace);
    EXPECT_THROW(make_policy(*ops_, wrong, shape(4), make_schedule("linspace", {.evaluations = 4})), Error) << trace;
  };
  refused("first-block", "run run");
  refused("first-block", "reuse run run run");
  refused("first-block", "run forecast run run");
  refused("none", "run reuse run run");
  EXPECT_THROW(parse_trace("run maybe"), Error);
}

TEST_F(PolicyTest, TwoEvaluationsAreNeverCached) {
  Request request(*ops_, parse_policy("first-block:1000,warmup=0,tail=0"), 2, 1, {0});
  request.step(0);
  request.step(1);
  EXPECT_EQ(request.policy->records()[1].action, StepAction::run);
}

TEST(PolicyText, RoundTripsWithEveryParameter) {
  for (const char* text : {"none", "first-block:0.05,cap=3", "forecast,blend=1", "teacache:0.2", "extrapolate:3"}) {
    const PolicySpec spec = parse_policy(text);
    const PolicySpec again = parse_policy(policy_text(spec));
    EXPECT_EQ(again.mode, spec.mode);
    EXPECT_EQ(again.parameters, spec.parameters) << text;
    EXPECT_EQ(spec.parameters.size(), policy_row(spec.mode).parameters.size());
  }
  EXPECT_EQ(parse_policy("first-block:0.05,cap=3").parameters.at("cap"), 3);
  for (const char* text : {"", "magic", "none:1", "forecast:1", "first-block:x", "first-block:-1",
                           "first-block,cap=1.5", "first-block,caps=1", "first-block,cap"}) {
    EXPECT_THROW(parse_policy(text), Error) << text;
  }
}

}  // namespace
}  // namespace h3
