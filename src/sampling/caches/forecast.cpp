// Forecast (spec acceleration 3): whole evaluations are skipped; output minus input of the model is carried on along
// its last change. Video and sound share the schedule of skips and never mix.
#include <algorithm>

#include "sampling/caches/list.h"

namespace h3 {

const PolicyParameter kForecastParameters[4] = {
    {"warmup", 3, 1, 1000, true, "first evaluations that always run"},
    {"tail", 2, 0, 1000, true, "last evaluations that always run"},
    {"cap", 3, 0, 1000, true, "most forecasts in a row"},
    {"blend", 0.65, 0, 1, false, "share of the last change that is carried on; 0 repeats the last difference"},
};

namespace {

// Per stream: R = out - in of the last evaluation that ran, and its slope.
struct ForecastStream {
  Tensor last, slope, next;
  ForecastStream(Device& device, int64_t rows, int64_t width)
      : last(device, DType::f32, {rows, width}, "forecast"),
        slope(device, DType::f32, {rows, width}, "forecast"),
        next(device, DType::f32, {rows, width}, "forecast") {}
};

class Forecast final : public StepPolicy {
 public:
  Forecast(Ops& ops, const PolicySpec& spec, const PolicyShape& shape)
      : ops_(ops),
        spec_(spec),
        shape_(shape),
        video_(ops.device(), shape.video_rows, shape.video_width),
        audio_(ops.device(), shape.audio_rows, shape.audio_width),
        sum_(ops.device(), {1, 1, 1, -1}),
        gaps_(ops.device(), gap_pairs(shape.evaluations)),
        distances_(ops.device(), distance_pairs(shape.evaluations, spec.parameters.at("blend"))) {}

  bool needs_model(int step, const Streams&) override {
    const auto [run, reason] = decide(step);
    record(run ? StepAction::run : StepAction::forecast, reason);
    consecutive_ = run ? 0 : consecutive_ + 1;
    return run;
  }

  void after_run(int step, const Streams& input, const Streams& velocity) override {
    learn(video_, step, input.video, velocity.video);
    learn(audio_, step, input.audio, velocity.audio);
    ++runs_;
    last_run_ = step;
  }

  void fill(int step, const Streams& input, const Streams& velocity) override {
    predict(video_, step, input.video, velocity.video);
    predict(audio_, step, input.audio, velocity.audio);
  }

 private:
  static std::vector<float> gap_pairs(int evaluations) {
    std::vector<float> pairs;
    for (int gap = 0; gap <= evaluations; ++gap) {
      const float share = 1.0f / static_cast<float>(std::max(gap, 1));
      pairs.insert(pairs.end(), {share, -share});
    }
    return pairs;
  }
  static std::vector<float> distance_pairs(int evaluations, double blend) {
    std::vector<float> pairs;
    for (int distance = 0; distance <= evaluations; ++distance) {
      pairs.insert(pairs.end(), {1.0f, static_cast<float>(std::max(distance, 1) * blend)});
    }
    return pairs;
  }

  std::pair<bool, const char*> decide(int step) const {
    if (!spec_.trace.empty()) return {spec_.trace[static_cast<size_t>(step)] == StepAction::run, "trace"};
    if (runs_ == 0) return {true, "first"};
    if (step < spec_.parameters.at("warmup")) return {true, "warmup"};
    if (step >= shape_.evaluations - spec_.parameters.at("tail")) return {true, "tail"};
    if (consecutive_ >= spec_.parameters.at("cap")) return {true, "cap"};
    return {false, "forecast"};
  }

  void learn(ForecastStream& stream, int step, const View& input, const View& velocity) {
    if (input.dim[0] == 0) return;
    ops_.lincomb(sum_.at(1), velocity, input, stream.next);
    if (runs_ > 0) ops_.lincomb(gaps_.at(step - last_run_), stream.next, stream.last, stream.slope);
    ops_.copy(stream.next, stream.last);
  }

  void predict(ForecastStream& stream, int step, const View& input, const View& velocity) {
    if (input.dim[0] == 0) return;
    ops_.lincomb(sum_.at(0), input, stream.last, velocity);
    if (runs_ > 1) ops_.lincomb(distances_.at(step - last_run_), velocity, stream.slope, velocity);
  }

  Ops& ops_;
  PolicySpec spec_;
  PolicyShape shape_;
  ForecastStream video_, audio_;
  CoefficientTable sum_, gaps_, distances_;
  int consecutive_ = 0, runs_ = 0, last_run_ = 0;
};

}  // namespace

std::unique_ptr<StepPolicy> make_forecast(Ops& ops, const PolicySpec& spec, const PolicyShape& shape, const Schedule&) {
  return std::make_unique<Forecast>(ops, spec, shape);
}

}  // namespace h3
