// y += scale * x W^T in bf16 on tensor cores, for the narrow products of low-rank branches: y is read and written once,
// and rounded once. cuBLASLt rounds the product before it adds what y held, which ops.h does not allow.
#include "backends/cuda/kernels/mma.cuh"

namespace h3::cuda {
namespace {

constexpr int kTile = 128;        // rows and outputs of a block
constexpr int kDepth = 64;        // of a step
constexpr int kPitch = kDepth + 8;  // of a row in shared memory: no bank conflicts
constexpr int kThreads = 256;     // eight warps of 32 rows x 64 outputs

// Rows [first, first + 128) and columns [k, k + 64) of [rows, depth], zeros beyond. kVec: 16-byte loads.
template <bool kVec>
__device__ void load_step(bf16* tile, const bf16* base, int64_t stride, int64_t first, int64_t rows, int64_t k,
                          int64_t depth) {
  for (int i = threadIdx.x; i < kTile * (kDepth / 8); i += kThreads) {
    const int row = i / (kDepth / 8), column = i % (kDepth / 8) * 8;
    const bf16* from = base + (first + row) * stride + k + column;
    bf16* to = tile + row * kPitch + column;
    const int64_t inside = first + row < rows ? depth - k - column : 0;
    if (kVec && inside >= 8) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
      continue;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) to[e] = e < inside ? from[e] : bf16(0.0f);
  }
}

template <bool kVec>
__global__ void __launch_bounds__(kThreads, 2)
    linear_add_kernel(const bf16* w, const bf16* x, int64_t x_stride, bf16* y, int64_t y_stride, int64_t rows,
                      int64_t outs, int64_t depth, float scale) {
  __shared__ __align__(16) bf16 left[kTile * kPitch], right[kTile * kPitch];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t o0 = int64_t{blockIdx.x} * kTile, r0 = int64_t{blockIdx.y} * kTile;
  const int warp_row = warp / 2 * 32, warp_out = warp % 2 * 64;
  float sum[2][8][4] = {};
  for (int64_t k = 0; k < depth; k += kDepth) {
    load_step<kVec>(left, x, x_stride, r0, rows, k, depth);
    load_step<kVec>(right, w, depth, o0, outs, k, depth);
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kDepth; step += 16) {
      uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ldmatrix4(a[i], left + (warp_row + 16 * i + lane % 16) * kPitch + step + lane / 16 * 8);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t b[4];
        ldmatrix4(b, right + (warp_out + 16 * j + lane % 8 + lane / 16 * 8) * kPitch + step + lane / 8 % 2 * 8);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          mma_16816<bf16>(sum[i][2 * j], a[i], b[0], b[1]);
          mma_16816<bf16>(sum[i][2 * j + 1], a[i], b[2], b[3]);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t r = r0 + warp_row + 16 * i + lane / 4 + e / 2 * 8;
        const int64_t o = o0 + warp_out + 8 * j + lane % 4 * 2 + e % 2;
        if (r >= rows || o >= outs) continue;
        bf16& out = y[r * y_stride + o];
        out = from_float<bf16>(to_float(out) + scale * sum[i][j][e]);
      }
    }
  }
}

}  // namespace

void linear_add_bf16(cudaStream_t stream, const void* w, const View& x, float scale, const View& y) {
  const int64_t depth = x.dim[1];
  const bool vectors = vectorises(x) && reinterpret_cast<uintptr_t>(w) % 16 == 0;
  const LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(y.dim[1], kTile)),
                               static_cast<unsigned>(ceil_div(y.dim[0], kTile))),
                          dim3(kThreads), 0};
  launch(stream, "linear_add", vectors ? linear_add_kernel<true> : linear_add_kernel<false>, shape,
         static_cast<const bf16*>(w), as<const bf16>(x), x.stride[0], as<bf16>(y), y.stride[0], y.dim[0], y.dim[1],
         depth, scale);
}

}  // namespace h3::cuda
