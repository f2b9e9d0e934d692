// Every k-th evaluation runs, and the first and the last; in between each stream extrapolates its velocity in its own
// noise level (spec acceleration 3.4).
#include <algorithm>

#include "sampling/caches/list.h"

namespace h3 {

const PolicyParameter kExtrapolateParameters[1] = {
    {"every", 2, 1, 1000, true, "distance of the evaluations that run"},
};

namespace {

bool runs(const PolicySpec& spec, int step, int evaluations) {
  if (!spec.trace.empty()) return spec.trace[static_cast<size_t>(step)] == StepAction::run;
  return step % static_cast<int>(spec.parameters.at("every")) == 0 || step == evaluations - 1;
}

// v = v_last + q (v_last - v_prev), q = (sigma - sigma_last) / (sigma_last - sigma_prev). Which evaluations run is
// known beforehand, so every q is too.
class ExtrapolateStream {
 public:
  ExtrapolateStream(Ops& ops, const PolicySpec& spec, const Grid& grid, int64_t rows, int64_t width)
      : last_(ops.device(), DType::f32, {rows, width}, "extrapolation"),
        change_(ops.device(), DType::f32, {rows, width}, "extrapolation"),
        minus_(ops.device(), {1, -1}),
        ahead_(ops.device(), pairs(spec, grid)) {}

  void learn(Ops& ops, const View& velocity, bool first) {
    if (velocity.dim[0] == 0) return;
    if (first) {
      ops.fill(change_, 0);
    } else {
      ops.lincomb(minus_.at(0), velocity, last_, change_);
    }
    ops.copy(velocity, last_);
  }
  void predict(Ops& ops, int step, const View& velocity) {
    if (velocity.dim[0] == 0) return;
    ops.lincomb(ahead_.at(step), last_, change_, velocity);
  }

 private:
  static std::vector<float> pairs(const PolicySpec& spec, const Grid& grid) {
    const int evaluations = static_cast<int>(grid.time.size());
    std::vector<float> out;
    int last = -1, previous = -1;
    for (int step = 0; step < evaluations; ++step) {
      double q = 0;
      if (previous >= 0) {
        q = (grid.sigma[static_cast<size_t>(step)] - grid.sigma[static_cast<size_t>(last)]) /
            (grid.sigma[static_cast<size_t>(last)] - grid.sigma[static_cast<size_t>(previous)]);
      }
      out.insert(out.end(), {1.0f, static_cast<float>(q)});
      if (runs(spec, step, evaluations)) {
        previous = last;
        last = step;
      }
    }
    return out;
  }

  Tensor last_, change_;
  CoefficientTable minus_, ahead_;
};

class Extrapolate final : public StepPolicy {
 public:
  Extrapolate(Ops& ops, const PolicySpec& spec, const PolicyShape& shape, const Schedule& schedule)
      : ops_(ops),
        spec_(spec),
        shape_(shape),
        video_(ops, spec, schedule.video, shape.video_rows, shape.video_width),
        audio_(ops, spec, schedule.audio, shape.audio_rows, shape.audio_width) {}

  bool needs_model(int step, const Streams&) override {
    const bool run = runs(spec_, step, shape_.evaluations);
    const char* const reason = !spec_.trace.empty() ? "trace" : run ? "anchor" : "forecast";
    record(run ? StepAction::run : StepAction::forecast, reason);
    return run;
  }
  void after_run(int, const Streams&, const Streams& velocity) override {
    video_.learn(ops_, velocity.video, first_);
    audio_.learn(ops_, velocity.audio, first_);
    first_ = false;
  }
  void fill(int step, const Streams&, const Streams& velocity) override {
    video_.predict(ops_, step, velocity.video);
    audio_.predict(ops_, step, velocity.audio);
  }

 private:
  Ops& ops_;
  PolicySpec spec_;
  PolicyShape shape_;
  ExtrapolateStream video_, audio_;
  bool first_ = true;
};

}  // namespace

std::unique_ptr<StepPolicy> make_extrapolate(Ops& ops, const PolicySpec& spec, const PolicyShape& shape,
                                             const Schedule& schedule) {
  return std::make_unique<Extrapolate>(ops, spec, shape, schedule);
}

}  // namespace h3
