// Do a matmul plan's first results agree with the same rows computed on the host?
#pragma once

#include "backends/cuda/linear_plans.h"

namespace h3::cuda {

// A few elements of y = x W^T + bias, W as its source decodes it, in double with the operands rounded as they are
// multiplied. Waits for the card. Error(device) naming the weight and the values when they differ by more than the
// contract of `linear` allows (ops/contract.h). Rows of x that are not finite are left out.
void check_plan(const CudaLinear& weight, const View& x, const View& y);

}  // namespace h3::cuda
