// From bound tensors to device weights.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>

#include "base/control.h"
#include "model/layer_stack.h"
#include "ops/ops.h"
#include "store/weights.h"

namespace h3::text {

using Matrix = std::unique_ptr<Linear>;

struct Materials {
  Ops& ops;
  const WeightBinder& binder;
  Compute compute = Compute::f32;
  const Control* control = nullptr;
  int64_t resident_layers = kAllLayers;  // of the language model

  // Rows of `weights` stacked, top to bottom; `bias` may be null.
  Matrix matrix(const std::string& label, std::initializer_list<const TensorInfo*> weights,
                const TensorInfo* bias = nullptr) const;
  MatrixSource source(const std::string& label, std::initializer_list<const TensorInfo*> weights) const;
  Tensor vector(const TensorInfo* info) const;  // [n] f32
  void loaded(int64_t done, int64_t total) const;
};

// Activations of a pass. bf16 operands come from a bf16 stream (the reference's own precision); everything else keeps
// f32: the residual stream of this model leaves the range of f16 (spec conditioner 6.5).
DType activation_type(Compute compute);

// Rows of one MLP or merger call: bounds the widest buffer; rows are independent, so the values do not depend on it.
inline constexpr int64_t kRowChunk = 1024;

}  // namespace h3::text
