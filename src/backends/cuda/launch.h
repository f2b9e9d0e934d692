// The only way to start a kernel: the launch is checked and blamed by name.
#pragma once

#include <cuda_runtime.h>

#include "backends/cuda/check.h"

namespace h3::cuda {

struct LaunchShape {
  dim3 grid, block;
  size_t shared = 0;  // dynamic shared memory, bytes
};

#ifdef __CUDACC__
template <typename... P, typename... A>
void launch(cudaStream_t stream, const char* name, void (*kernel)(P...), const LaunchShape& shape, A... args) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  if (shape.shared > 48 * 1024) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared)),
          name);
  }
  kernel<<<shape.grid, shape.block, shape.shared, stream>>>(static_cast<P>(args)...);
  check(cudaGetLastError(), name);
}
#endif

}  // namespace h3::cuda
