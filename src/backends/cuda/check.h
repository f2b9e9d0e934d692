// Return codes of the CUDA libraries become Error(device), or Error(memory) for a failed allocation.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

namespace h3::cuda {

void check(cudaError_t status, const char* what);
void check(cublasStatus_t status, const char* what);
void check(cudnnStatus_t status, const char* what);

}  // namespace h3::cuda
