// A row as codes of e4m3 with one scale (codec/float8_row.h), made by the block that has the row in registers.
#pragma once

#include <cuda_fp8.h>

#include "backends/cuda/kernels/common.cuh"
#include "codec/float8_row.h"

namespace h3::cuda {

// Eight consecutive values as codes.
__device__ inline uint2 float8_codes(const float* v, float inverse) {
  uint2 codes;
  auto* pair = reinterpret_cast<__nv_fp8x2_storage_t*>(&codes);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const float2 two = make_float2(v[2 * e] * inverse, v[2 * e + 1] * inverse);
    pair[e] = __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3);
  }
  return codes;
}

// The bits of a magnitude, which order as the magnitudes do, NaN above all.
__device__ inline uint32_t magnitude_bits(float v) { return __float_as_uint(v) & 0x7fffffffu; }

// The largest of the block as a float; every thread gets it. `shared` holds a word for every warp.
template <int kThreads>
__device__ inline float block_max(uint32_t top, uint32_t* shared) {
  top = __reduce_max_sync(0xffffffffu, top);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = top;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) top = max(top, shared[w]);
  return __uint_as_float(top);
}

}  // namespace h3::cuda
