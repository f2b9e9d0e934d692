// Shared by the kernels: element access with the rounding of ops.h, vector access, block reductions in a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "backends/cuda/backend.h"
#include "backends/cuda/launch.h"
#include "base/error.h"

namespace h3::cuda {

using bf16 = __nv_bfloat16;

__device__ inline float to_float(float v) { return v; }
__device__ inline float to_float(bf16 v) { return __bfloat162float(v); }
__device__ inline float to_float(__half v) { return __half2float(v); }
template <typename T>
__device__ inline T from_float(float v);
template <>
__device__ inline float from_float<float>(float v) {
  return v;
}
template <>
__device__ inline bf16 from_float<bf16>(float v) {
  return __float2bfloat16_rn(v);
}
template <>
__device__ inline __half from_float<__half>(float v) {
  return __float2half_rn(v);
}
// round_T of ops.h, kept as f32.
template <typename T>
__device__ inline float round_to(float v) {
  return to_float(from_float<T>(v));
}

// Eight consecutive elements as floats; 16-byte accesses where the type allows.
template <typename T>
struct Vec8 {
  float v[8];
  __device__ void load(const T* p) {
    if constexpr (sizeof(T) == 2) {
      const uint4 raw = *reinterpret_cast<const uint4*>(p);
      const T* e = reinterpret_cast<const T*>(&raw);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = to_float(e[i]);
    } else {
      const float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
      v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    }
  }
  __device__ void store(T* p) const {
    if constexpr (sizeof(T) == 2) {
      uint4 raw;
      T* e = reinterpret_cast<T*>(&raw);
#pragma unroll
      for (int i = 0; i < 8; ++i) e[i] = from_float<T>(v[i]);
      *reinterpret_cast<uint4*>(p) = raw;
    } else {
      reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
      reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
    }
  }
};

// Sum over the block; every thread gets it. `shared` holds 33 floats. Fixed order: the result depends on the block size
// only.
__device__ inline float block_sum(float v, float* shared) {
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;
  if (lane == 0) shared[warp] = v;
  __syncthreads();
  if (warp == 0) {
    float total = lane < warps ? shared[lane] : 0.0f;
    for (int offset = 16; offset > 0; offset >>= 1) total += __shfl_xor_sync(0xffffffffu, total, offset);
    if (lane == 0) shared[32] = total;
  }
  __syncthreads();
  const float total = shared[32];
  __syncthreads();
  return total;
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <typename T>
T* as(const View& view) {
  return reinterpret_cast<T*>(view.data);
}

// Last axis dense, and 16-byte vectors of 8 legal on every row.
inline bool vectorises(const View& view) {
  const int64_t n = view.dim[view.rank - 1];
  if (n % 8 != 0 || view.stride[view.rank - 1] != 1 || reinterpret_cast<uintptr_t>(view.data) % 16 != 0) return false;
  for (int i = 0; i + 1 < view.rank; ++i) {
    if (view.stride[i] * size_of(view.type) % 16 != 0) return false;
  }
  return true;
}

// Runs body with T bound to the element type of `type`.
#define H3_FLOAT_TYPE(type, ...)  \
  switch (type) {                 \
    case DType::f32: {            \
      using T = float;            \
      __VA_ARGS__;                \
      break;                      \
    }                             \
    case DType::bf16: {           \
      using T = ::h3::cuda::bf16; \
      __VA_ARGS__;                \
      break;                      \
    }                             \
    case DType::f16: {            \
      using T = __half;           \
      __VA_ARGS__;                \
      break;                      \
    }                             \
    default: H3_ASSERT(false);    \
  }
#define H3_FLOAT_TYPE_AS(Name, type, ...) \
  switch (type) {                         \
    case DType::f32: {                    \
      using Name = float;                 \
      __VA_ARGS__;                        \
      break;                              \
    }                                     \
    case DType::bf16: {                   \
      using Name = ::h3::cuda::bf16;      \
      __VA_ARGS__;                        \
      break;                              \
    }                                     \
    case DType::f16: {                    \
      using Name = __half;                \
      __VA_ARGS__;                        \
      break;                              \
    }                                     \
    default: H3_ASSERT(false);            \
  }

}  // namespace h3::cuda
