// Weights as the card multiplies them: converted once at load, then on the card or in a group of host memory.
#pragma once

#include <vector>

#include "backends/cuda/linear_plans.h"

namespace h3::cuda {

Format stored_as(DType type);  // the storage format whose bytes are operands of this type

// linear.data (and scales), or with a group its share of the group and linear.offset.
void upload_operands(CudaOps& ops, CudaLinear& linear, const MatrixSource& source, StreamGroup* group);
void upload_bias(CudaOps& ops, CudaLinear& linear, const std::vector<float>& bias);

}  // namespace h3::cuda
