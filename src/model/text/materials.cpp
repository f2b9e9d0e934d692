#include "model/text/materials.h"

namespace h3::text {

Matrix Materials::matrix(const std::string& label, std::initializer_list<const TensorInfo*> weights,
                         const TensorInfo* bias) const {
  LinearSpec spec;
  spec.label = label;
  spec.compute = compute;
  spec.weight = source(label, weights);
  spec.bias = binder.values(bias);
  return ops.make_linear(std::move(spec));
}

MatrixSource Materials::source(const std::string& label, std::initializer_list<const TensorInfo*> weights) const {
  MatrixSource source;
  source.name = label;
  for (const TensorInfo* info : weights) {
    const StoredMatrix stored = binder.matrix(info);
    source.append(stored, 0, stored.rows);
  }
  return source;
}

Tensor Materials::vector(const TensorInfo* info) const {
  const std::vector<float> values = binder.values(info);
  return upload_f32(ops.device(), values.data(), {static_cast<int64_t>(values.size())}, DType::f32, info->name.c_str());
}

void Materials::loaded(int64_t done, int64_t total) const {
  if (control != nullptr) control->progress("load conditioner", done, total);
}

DType activation_type(Compute compute) {
  return compute == Compute::f32 || compute == Compute::f16 ? DType::f32 : DType::bf16;
}

}  // namespace h3::text
