#include "backends/cuda/check.h"

#include "base/error.h"

namespace h3::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  const Code code = status == cudaErrorMemoryAllocation ? Code::memory : Code::device;
  fail(code, "CUDA: %s failed: %s (%s)", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(Code::device, "cuBLASLt: %s failed with status %d", what, static_cast<int>(status));
}

void check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  fail(Code::device, "cuDNN: %s failed with status %d", what, static_cast<int>(status));
}

}  // namespace h3::cuda
