// y += scale * x W^T in bf16 on tensor cores, for the narrow products of low-rank branches: y is read and written once,
// and rounded once. cuBLASLt rounds the product before it adds what y held, which ops.h does not allow. The memory that
// y takes sets the pace: its tile is on its way while the products are made, and moves in 16-byte pieces.
#include "backends/cuda/kernels/mma.cuh"

namespace h3::cuda {
namespace {

constexpr int kTile = 128;     // rows and outputs of a block
constexpr int kDepth = 64;     // of a step; two are in shared memory
constexpr int kThreads = 256;  // eight warps of 32 rows x 64 outputs
constexpr size_t kSharedBytes = (size_t{4} * kTile * kDepth + size_t{kTile} * kTile) * sizeof(bf16);
static_assert(kSharedBytes <= 99 * 1024);  // what a block may have on compute capability 8.6, 8.9 and 12.0

// Where element `column` of a row of kColumns lies: pieces of eight are swizzled over eight rows, against bank
// conflicts.
template <int kColumns>
__device__ inline int place(int row, int column) {
  return row * kColumns + ((column / 8 ^ row % 8) * 8 | column % 8);
}

struct AddArgs {
  const bf16 *w, *x;
  bf16* y;
  int64_t x_stride, y_stride, rows, outs, depth;
  float scale;
};

// Rows [first, first + 128) and kColumns columns from `column0` of [rows, columns] into shared memory, zeros beyond.
// kVec: 16-byte asynchronous copies.
template <int kColumns, bool kVec>
__device__ void load_rows(bf16* tile, const bf16* base, int64_t stride, int64_t first, int64_t rows, int64_t column0,
                          int64_t columns) {
  for (int i = threadIdx.x; i < kTile * (kColumns / 8); i += kThreads) {
    const int row = i / (kColumns / 8), column = i % (kColumns / 8) * 8;
    const bf16* from = base + (first + row) * stride + column0 + column;
    bf16* to = tile + place<kColumns>(row, column);
    const int64_t inside = first + row < rows ? columns - column0 - column : 0;
    if constexpr (kVec) {
      copy_16(to, inside > 0 ? from : base, inside > 0);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) to[e] = e < inside ? from[e] : bf16(0.0f);
    }
  }
}

// `left`, `right`: the warp's first rows, a multiple of eight, so that a row is swizzled by its number here.
__device__ inline void multiply_step(float (&sum)[2][8][4], const bf16* left, const bf16* right) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int a_row = lane % 16, b_row = lane % 8 + lane / 16 * 8;
#pragma unroll
  for (int step = 0; step < kDepth; step += 16) {
    const bf16* const a_from = left + place<kDepth>(a_row, step + lane / 16 * 8);
    const bf16* const b_from = right + place<kDepth>(b_row, step + lane / 8 % 2 * 8);
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) ldmatrix4(a[i], a_from + 16 * i * kDepth);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t b[4];
      ldmatrix4(b, b_from + 16 * j * kDepth);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mma_16816<bf16>(sum[i][2 * j], a[i], b[0], b[1]);
        mma_16816<bf16>(sum[i][2 * j + 1], a[i], b[2], b[3]);
      }
    }
  }
}

template <bool kVec>
__global__ void __launch_bounds__(kThreads, 2) linear_add_kernel(AddArgs a) {
  extern __shared__ __align__(16) char raw[];
  bf16* const steps = reinterpret_cast<bf16*>(raw);  // two pairs of x and w
  bf16* const held = steps + 4 * kTile * kDepth;     // y
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t o0 = int64_t{blockIdx.x} * kTile, r0 = int64_t{blockIdx.y} * kTile;
  const int warp_row = warp / 2 * 32, warp_out = warp % 2 * 64;
  const auto load = [&](int64_t k, int slot) {
    bf16* const pair = steps + slot * 2 * kTile * kDepth;
    load_rows<kDepth, kVec>(pair, a.x, a.x_stride, r0, a.rows, k, a.depth);
    load_rows<kDepth, kVec>(pair + kTile * kDepth, a.w, a.depth, o0, a.outs, k, a.depth);
  };
  load(0, 0);
  copies_end();
  load_rows<kTile, kVec>(held, a.y, a.y_stride, r0, a.rows, o0, a.outs);  // in the group of the second step
  float sum[2][8][4] = {};
  for (int64_t k = 0; k < a.depth; k += kDepth) {
    const int slot = static_cast<int>(k / kDepth % 2);
    if (k + kDepth < a.depth) load(k + kDepth, slot ^ 1);
    copies_end();
    copies_wait<1>();
    __syncthreads();
    const bf16* const pair = steps + slot * 2 * kTile * kDepth;
    multiply_step(sum, pair + warp_row * kDepth, pair + (kTile + warp_out) * kDepth);
    __syncthreads();
  }
  copies_wait<0>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        bf16* const at = held + place<kTile>(warp_row + 16 * i + lane / 4 + half * 8, warp_out + 8 * j + lane % 4 * 2);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          at[e] = from_float<bf16>(to_float(at[e]) + a.scale * sum[i][j][2 * half + e]);
        }
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTile * (kTile / 8); i += kThreads) {
    const int row = i / (kTile / 8), column = i % (kTile / 8) * 8;
    if (r0 + row >= a.rows) continue;
    const bf16* const from = held + place<kTile>(row, column);
    bf16* const to = a.y + (r0 + row) * a.y_stride + o0 + column;
    const int64_t inside = a.outs - o0 - column;
    if constexpr (kVec) {
      if (inside > 0) *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int e = 0; e < 8 && e < inside; ++e) to[e] = from[e];
    }
  }
}

}  // namespace

void linear_add_bf16(cudaStream_t stream, const void* w, const View& x, float scale, const View& y) {
  const AddArgs a{.w = static_cast<const bf16*>(w),
                  .x = as<const bf16>(x),
                  .y = as<bf16>(y),
                  .x_stride = x.stride[0],
                  .y_stride = y.stride[0],
                  .rows = y.dim[0],
                  .outs = y.dim[1],
                  .depth = x.dim[1],
                  .scale = scale};
  const bool vectors = vectorises(x) && vectorises(y) && reinterpret_cast<uintptr_t>(w) % 16 == 0;
  const LaunchShape shape{
      dim3(static_cast<unsigned>(ceil_div(a.outs, kTile)), static_cast<unsigned>(ceil_div(a.rows, kTile))),
      dim3(kThreads), kSharedBytes};
  launch(stream, "linear_add", vectors ? linear_add_kernel<true> : linear_add_kernel<false>, shape, a);
}

}  // namespace h3::cuda
