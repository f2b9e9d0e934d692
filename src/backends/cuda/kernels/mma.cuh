// Tensor-core fragments (mma.sync m16n8k16) and the shared-memory tiles they read.
#pragma once

#include "backends/cuda/kernels/common.cuh"

namespace h3::cuda {

inline constexpr int kTileThreads = 128;  // of the blocks that call load_tile

template <typename T>
__device__ inline void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

__device__ inline void ldmatrix4(uint32_t (&r)[4], const void* p) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(p));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

__device__ inline void ldmatrix4_trans(uint32_t (&r)[4], const void* p) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(p));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

template <typename T>
__device__ inline uint32_t pack2(float low, float high) {
  const T l = from_float<T>(low), h = from_float<T>(high);
  return static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(&l)) |
         static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(&h)) << 16;
}

// 16 bytes to shared memory, asynchronously; zeros where not `inside` (`from` must still be an address to read).
__device__ inline void copy_16(void* to, const void* from, bool inside) {
  const uint32_t target = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(from), "r"(inside ? 16 : 0)
               : "memory");
}
// Copies since the last call of it are a group; waits until at most kPending groups are under way.
__device__ inline void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Rows first .. first + 63 of [rows, d] into shared [64][kPad], zeros beyond rows and d. kVec: 16-byte asynchronous
// copies.
template <typename T, int kDim, bool kVec>
__device__ void load_tile(T* tile, const T* base, int64_t row_stride, int64_t first, int64_t rows, int d) {
  constexpr int kPad = kDim + 8;
  if constexpr (kVec) {
    constexpr int kChunks = kDim / 8;
    for (int i = threadIdx.x; i < 64 * kChunks; i += kTileThreads) {
      const int r = i / kChunks, c = i % kChunks * 8;
      const bool inside = first + r < rows && c < d;
      const T* source = inside ? base + (first + r) * row_stride + c : base;
      copy_16(tile + r * kPad + c, source, inside);
    }
    copies_end();
  } else {
    for (int i = threadIdx.x; i < 64 * kDim; i += kTileThreads) {
      const int r = i / kDim, c = i % kDim;
      tile[r * kPad + c] = first + r < rows && c < d ? base[(first + r) * row_stride + c] : from_float<T>(0.0f);
    }
  }
}

}  // namespace h3::cuda
