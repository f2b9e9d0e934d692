// cuDNN's fused attention through its backend API: one plan per shape, built on first use, cached, run serialised on
// the stream. Q, K, V may be strided views of one fused buffer.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/memory.h"
#include "ops/ops.h"
#include "ops/plan_maker.h"

namespace h3::cuda {

class DnnAttention {
 public:
  explicit DnnAttention(CudaDevice& device);
  ~DnnAttention();
  // False when cuDNN is absent or refuses this shape; the generic kernel serves then.
  bool run(const AttentionArgs& args);
  // For every shape so far, as JSON of the library; what use() is given replaces building (ops/plan_maker.h).
  std::vector<PlanChoice> plans();
  void use(std::shared_ptr<const PlanChoices> choices);
  // Why the last refused shape was refused; for --explain.
  const std::string& refusal() const { return refusal_; }

 private:
  struct Plan;
  using Key = std::vector<int64_t>;
  Plan* find(const AttentionArgs& args);
  std::unique_ptr<Plan> build(const AttentionArgs& args);
  std::unique_ptr<Plan> chosen(const Key& key);          // nullptr: none, or one that the library does not take
  std::unique_ptr<Plan> chosen_or_none(const Key& key);  // an error of the library counts as none
  void finish(Plan& plan);

  CudaDevice& device_;
  void* handle_ = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans_;  // nullptr = refused
  std::string refusal_;
  std::shared_ptr<const PlanChoices> choices_;
};

}  // namespace h3::cuda
