// The plans of this card as data (ops/plan_maker.h).
#include <cstring>
#include <limits>
#include <utility>

#include "backends/cuda/attention_dnn.h"
#include "backends/cuda/backend.h"
#include "backends/cuda/check.h"
#include "backends/cuda/linear_plans.h"
#include "base/error.h"
#include "ops/plan_maker.h"

namespace h3::cuda {
namespace {

constexpr int64_t kResultRows = 16;  // of a trial, looked at

std::string version(int packed) { return strf("%d.%d", packed / 1000, packed % 1000 / 10); }

// A product of made-up rows, by one candidate after the other.
class LinearTrial final : public MatmulTrial {
 public:
  LinearTrial(CudaOps& ops, LinearPlans& plans, const CudaLinear& weight, int64_t rows, LinearTrial* like)
      : ops_(ops), plans_(plans), weight_(weight) {
    const DType type = weight.compute == Compute::f32 ? DType::f32 : DType::bf16;
    x_ = Tensor(ops.device(), type, {rows, weight.in}, "operands of a trial");
    y_ = Tensor(ops.device(), type, {rows, weight.out}, "the result of a trial");
    NoiseWeights noise;
    noise.amplitude = 1.0f;
    noise.seed = 5;
    fill_noise(ops.stream(), noise, 0, rows * weight.in, x_.buffer.data(), type);
    if (like != nullptr) trial_.others = like->trial_.others;
    run(0);  // the proposals are there now
    candidates_ = 1;
    for (const auto& [kind, others] : trial_.others) {
      candidates_ = std::max(candidates_, 1 + static_cast<int>(others.size()));
    }
  }

  int candidates() const override { return candidates_; }
  double run(int candidate) override {
    trial_.candidate = candidate;
    trial_.refused = false;
    weight_.plans.clear();
    plans_.algorithms().try_out(&trial_);
    try {
      ops_.linear(weight_, x_, y_);  // makes the plans
      check(cudaEventRecord(begin_.event, ops_.stream()), "timing");
      ops_.linear(weight_, x_, y_);
      check(cudaEventRecord(end_.event, ops_.stream()), "timing");
      check(cudaEventSynchronize(end_.event), "timing");
    } catch (...) {
      finish();
      throw;
    }
    finish();
    if (trial_.refused) return std::numeric_limits<double>::infinity();
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_.event, end_.event), "timing");
    return 1e-3 * static_cast<double>(milliseconds);
  }
  std::vector<float> result() override {
    std::vector<float> out;
    const int64_t rows = y_.view.dim[0], count = std::min(kResultRows, rows);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = count < 2 ? 0 : i * (rows - 1) / (count - 1);
      const std::vector<float> values = download_f32(y_.view.slice(0, row, 1));
      out.insert(out.end(), values.begin(), values.end());
    }
    return out;
  }
  std::vector<PlanChoice> choices(int candidate) override {
    std::vector<PlanChoice> out;
    for (const auto& [kind, others] : trial_.others) {
      if (candidate < 1 || static_cast<size_t>(candidate) > others.size()) continue;
      PlanChoice& choice = out.emplace_back();
      choice.call = kind;
      choice.data.resize(sizeof others[0]);
      std::memcpy(choice.data.data(), &others[static_cast<size_t>(candidate - 1)], sizeof others[0]);
    }
    return out;
  }

 private:
  void finish() {
    plans_.algorithms().try_out(nullptr);
    weight_.plans.clear();  // nothing of a trial outlives it
  }

  CudaOps& ops_;
  LinearPlans& plans_;
  const CudaLinear& weight_;
  Tensor x_, y_;
  EventOwner begin_{cudaEventDefault}, end_{cudaEventDefault};
  Algorithms::Trial trial_;
  int candidates_ = 1;
};

class CudaPlanMaker final : public PlanMaker {
 public:
  CudaPlanMaker(CudaOps& ops, int index, LinearPlans& plans, DnnAttention& attention)
      : ops_(ops), index_(index), plans_(plans), attention_(attention) {}

  std::vector<std::pair<std::string, std::string>> key() const override {
    cudaDeviceProp properties;
    int driver = 0, runtime = 0;
    check(cudaGetDeviceProperties(&properties, index_), "reading the card's properties");
    check(cudaDriverGetVersion(&driver), "reading the driver's version");
    check(cudaRuntimeGetVersion(&runtime), "reading the runtime's version");
    return {{"card", properties.name},       {"sm", strf("%d%d", properties.major, properties.minor)},
            {"driver", version(driver)},     {"toolkit", version(runtime)},
            {"cublaslt", blas_lt().version}, {"cudnn", dnn().loaded() ? dnn().version : "none"}};
  }
  std::unique_ptr<MatmulTrial> try_matmul(const Linear& weight, int64_t rows, MatmulTrial* like) override {
    return std::make_unique<LinearTrial>(ops_, plans_, static_cast<const CudaLinear&>(weight), rows,
                                         static_cast<LinearTrial*>(like));
  }
  std::vector<PlanChoice> attention_plans() override { return attention_.plans(); }
  void use(std::shared_ptr<const PlanChoices> choices) override {
    plans_.use(choices);
    attention_.use(std::move(choices));
  }

 private:
  CudaOps& ops_;
  int index_;
  LinearPlans& plans_;
  DnnAttention& attention_;
};

}  // namespace

PlanMaker* CudaOps::plan_maker() {
  if (plan_maker_ == nullptr) plan_maker_ = std::make_unique<CudaPlanMaker>(*this, index_, *plans_, *dnn_);
  return plan_maker_.get();
}

}  // namespace h3::cuda
