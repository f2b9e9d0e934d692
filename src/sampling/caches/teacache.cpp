// TeaCache-style (spec acceleration 4.2): the changes of block 0's modulated input add up until they reach the
// threshold; meanwhile the whole stack is replaced by what it added last. Thresholds do not transfer between step
// counts.
#include "sampling/caches/list.h"

namespace h3 {

const PolicyParameter kTeaCacheParameters[3] = {
    {"threshold", 0.10, 0, 1e9, false, "sum of relative changes from which an evaluation runs; 0 runs everything"},
    {"warmup", 5, 0, 1000, true, "first evaluations that always run"},
    {"tail", 1, 0, 1000, true, "last evaluations that always run"},
};

namespace {

class TeaCache final : public StepPolicy {
 public:
  TeaCache(Ops& ops, const PolicySpec& spec, const PolicyShape& shape)
      : ops_(ops),
        spec_(spec),
        shape_(shape),
        previous_(ops.device(), shape.type, {shape.rows, shape.hidden}, "TeaCache input"),
        stack_(ops.device(), shape.type, {shape.rows, shape.hidden}, "cached residual"),
        ratio_(ops) {
    ops.fill(previous_, 0);
    ratio_(previous_, previous_);  // its scratch is made here, not in the loop
  }

  bool needs_model(int, const Streams&) override { return true; }
  bool wants_modulated() const override { return true; }

  bool run_rest(int step, const View& rows, const View& modulated) override {
    const double change = step > 0 ? ratio_(modulated, previous_) : 0;
    ops_.copy(modulated, previous_);
    sum_ += change;
    const char* reason = reason_to_run(step);
    if (reason == nullptr) {
      record(StepAction::reuse, spec_.trace.empty() ? "reuse" : "trace", sum_);
      ops_.add(rows, stack_, rows);
      return false;
    }
    record(StepAction::run, reason, sum_);
    sum_ = 0;
    ops_.copy(rows, stack_);
    return true;
  }

  void after_rest(int, const View& rows) override {
    ops_.subtract(rows, stack_, stack_);
    known_ = true;
  }

 private:
  const char* reason_to_run(int step) const {
    if (!spec_.trace.empty()) return spec_.trace[static_cast<size_t>(step)] == StepAction::run ? "trace" : nullptr;
    if (!known_) return "first";
    if (step < spec_.parameters.at("warmup")) return "warmup";
    if (step >= shape_.evaluations - spec_.parameters.at("tail")) return "tail";
    return sum_ < spec_.parameters.at("threshold") ? nullptr : "threshold";  // a NaN runs
  }

  Ops& ops_;
  PolicySpec spec_;
  PolicyShape shape_;
  Tensor previous_, stack_;
  L1Ratio ratio_;
  double sum_ = 0;
  bool known_ = false;
};

}  // namespace

std::unique_ptr<StepPolicy> make_teacache(Ops& ops, const PolicySpec& spec, const PolicyShape& shape, const Schedule&) {
  return std::make_unique<TeaCache>(ops, spec, shape);
}

}  // namespace h3
