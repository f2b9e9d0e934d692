// The NVIDIA back end as the rest of the engine sees it: no CUDA header here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/context.h"
#include "ops/ops.h"

namespace h3 {

struct CudaCard {
  int index = 0;  // as the process sees it: CUDA_VISIBLE_DEVICES is honoured by the driver
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int64_t total_bytes = 0, free_bytes = 0;
  std::string libraries;  // "cuBLASLt 13.1, cuDNN 9.14"
  std::string refused;    // why it cannot be used; empty = usable
};

// Every card, or one entry whose `refused` says why there is none (no driver, a driver too old).
std::vector<CudaCard> list_cuda_cards();

// Whose kernels compute exact attention: the faster of both, cuDNN's wherever it takes the shape, or never cuDNN's.
enum class CudaAttention : uint8_t { faster, library, own };

// Error(device) with the reason when the card cannot be used.
std::unique_ptr<Ops> make_cuda_ops(Context& context, int index, CudaAttention attention = CudaAttention::faster);

}  // namespace h3
