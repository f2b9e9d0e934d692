// First-block cache (spec acceleration 2.2, 2.4): block 0 always runs; when its residual has changed little since the
// last evaluation that ran in full, blocks 1 .. L-1 are replaced by what they added then.
#include <algorithm>
#include <cmath>
#include <utility>

#include "sampling/caches/list.h"

namespace h3 {

const PolicyParameter kFirstBlockParameters[5] = {
    {"threshold", 0.08, 0, 1e9, false,
     "largest relative change of block 0's residual that is reused; 0 reuses nothing"},
    {"warmup", 3, 0, 1000, true, "first evaluations that always run"},
    {"tail", 2, 0, 1000, true, "last evaluations that always run"},
    {"cap", 2, 0, 1000, true, "most reuses in a row"},
    {"worst", 0, 0, 1, true, "1: video and sound are measured apart and the larger change decides"},
};

namespace {

class FirstBlock final : public StepPolicy {
 public:
  FirstBlock(Ops& ops, const PolicySpec& spec, const PolicyShape& shape)
      : ops_(ops),
        spec_(spec),
        shape_(shape),
        difference_(buffer("first-block residual")),
        reference_(buffer("first-block reference")),
        tail_(buffer("cached residual")),
        ratio_(ops) {
    ops.fill(difference_, 0);
    ops.fill(reference_, 0);
    ratio_(difference_, reference_);  // its scratch is made here, not in the loop
  }

  bool needs_model(int, const Streams&) override { return true; }
  int64_t prefix() const override { return 1; }
  void entering(int, const View& rows) override { ops_.copy(rows, difference_); }

  bool run_rest(int step, const View& rows, const View&) override {
    ops_.subtract(rows, difference_, difference_);
    const auto [run, reason, metric] = decide(step);
    if (!run) {
      record(StepAction::reuse, reason, metric);
      ++consecutive_;
      ops_.add(rows, tail_, rows);
      return false;
    }
    record(StepAction::run, reason, metric);
    consecutive_ = 0;
    ops_.copy(rows, tail_);  // until the rest has run: the rows it started from
    std::swap(difference_, reference_);
    return true;
  }

  void after_rest(int, const View& rows) override {
    ops_.subtract(rows, tail_, tail_);
    known_ = true;
  }

 private:
  struct Decision {
    bool run;
    const char* reason;
    double metric;
  };

  Tensor buffer(const char* what) const {
    return Tensor(ops_.device(), shape_.type, {shape_.rows, shape_.hidden}, what);
  }
  double parameter(const char* name) const { return spec_.parameters.at(name); }

  Decision decide(int step) {
    if (!spec_.trace.empty()) return {spec_.trace[static_cast<size_t>(step)] == StepAction::run, "trace", NAN};
    if (!known_) return {true, "first", NAN};
    if (step < parameter("warmup")) return {true, "warmup", NAN};
    if (step >= shape_.evaluations - parameter("tail")) return {true, "tail", NAN};
    if (consecutive_ >= parameter("cap")) return {true, "cap", NAN};
    const double metric = change();
    // A NaN runs; equality reuses, except that a threshold of 0 reuses nothing.
    const bool reuse =
        parameter("threshold") > 0 && metric <= static_cast<double>(static_cast<float>(parameter("threshold")));
    return {!reuse, reuse ? "reuse" : "threshold", metric};
  }

  double change() {
    if (parameter("worst") == 0) return ratio_(difference_, reference_);
    double worst = 0;
    for (const auto& [first, count] :
         {std::pair(shape_.first_audio, shape_.audio_rows), std::pair(shape_.first_video, shape_.video_rows)}) {
      if (count == 0) continue;
      const double one = ratio_(difference_.view.slice(0, first, count), reference_.view.slice(0, first, count));
      worst = one > worst || std::isnan(one) ? one : worst;
    }
    return worst;
  }

  Ops& ops_;
  PolicySpec spec_;
  PolicyShape shape_;
  Tensor difference_, reference_, tail_;
  L1Ratio ratio_;
  int consecutive_ = 0;
  bool known_ = false;
};

}  // namespace

std::unique_ptr<StepPolicy> make_first_block(Ops& ops, const PolicySpec& spec, const PolicyShape& shape,
                                             const Schedule&) {
  return std::make_unique<FirstBlock>(ops, spec, shape);
}

}  // namespace h3
