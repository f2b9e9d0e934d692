// cuBLASLt and cuDNN, opened at run time: the program starts on machines that have neither, nor a driver. The CUDA
// runtime is linked statically and itself looks for the driver.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include <string>

namespace h3::cuda {

// Entry points by their own names. loaded() is false, and `reason` says why, when the library or a symbol is missing.
struct BlasLt {
  std::string reason = "not opened", version;
  bool loaded() const { return reason.empty(); }
#define H3_BLASLT(X)                                                                                                  \
  X(cublasLtCreate)                                                                                                   \
  X(cublasLtDestroy) X(cublasLtGetVersion) X(cublasLtMatmul) X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy) \
      X(cublasLtMatmulDescSetAttribute) X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy)                  \
          X(cublasLtMatrixLayoutSetAttribute) X(cublasLtMatmulPreferenceCreate) X(cublasLtMatmulPreferenceDestroy)    \
              X(cublasLtMatmulPreferenceSetAttribute) X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmulAlgoCheck)
#define H3_DECLARE(name) decltype(&::name) name = nullptr;
  H3_BLASLT(H3_DECLARE)
};

struct Dnn {
  std::string reason = "not opened", version;
  bool loaded() const { return reason.empty(); }
#define H3_DNN(X)                                                                                                      \
  X(cudnnCreate)                                                                                                       \
  X(cudnnDestroy) X(cudnnSetStream) X(cudnnGetVersion) X(cudnnBackendCreateDescriptor)                                 \
      X(cudnnBackendDestroyDescriptor) X(cudnnBackendSetAttribute) X(cudnnBackendGetAttribute) X(cudnnBackendFinalize) \
          X(cudnnBackendExecute)
  H3_DNN(H3_DECLARE)
#undef H3_DECLARE
};

// Opened once per process; the tables are immutable afterwards.
const BlasLt& blas_lt();
const Dnn& dnn();

}  // namespace h3::cuda
