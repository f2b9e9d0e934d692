// Matmuls through cuBLASLt: operands packed at load, descriptors and algorithm chosen once per (weight, rows, strides).
#pragma once

#include <map>
#include <memory>
#include <tuple>

#include "backends/cuda/backend.h"

namespace h3::cuda {

// A weight on the card. `data` holds [out, in] in the operand type; int8 adds one f32 scale per output.
struct CudaLinear final : Linear {
  DType operand = DType::f32;
  int64_t in_padded = 0, out_padded = 0;  // int8 operands are padded with zeros to multiples of 16
  Buffer data, scales, bias_f32, bias_epilogue;
  DType epilogue_type = DType::f32;  // type of bias_epilogue: exact in it, so cuBLASLt may add it
  // Plans by (rows, row strides, output type); filled on first use of a shape.
  struct Plan;
  mutable std::map<std::tuple<int64_t, int64_t, int64_t, int>, std::shared_ptr<Plan>> plans;
  ~CudaLinear() override;
};

class LinearPlans {
 public:
  explicit LinearPlans(CudaOps& ops);
  ~LinearPlans();
  std::unique_ptr<Linear> make(LinearSpec spec);
  void run(const CudaLinear& weight, const View& x, const View& y);

 private:
  std::shared_ptr<CudaLinear::Plan> plan(const CudaLinear& weight, int64_t rows, int64_t ldx, int64_t ldy, DType out,
                                         bool bias);
  void matmul(const CudaLinear& weight, const void* x, int64_t ldx, int64_t rows, void* y, int64_t ldy, DType out,
              bool bias);
  void upload_weight(CudaLinear& linear, const MatrixSource& source);
  void upload_bias(CudaLinear& linear, const std::vector<float>& bias);

  CudaOps& ops_;
  cublasLtHandle_t handle_ = nullptr;
  Buffer workspace_;
};

}  // namespace h3::cuda
