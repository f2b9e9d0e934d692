// What the kernels of sparse attention share (ops.h: sparse_attention).
#pragma once

#include "backends/cuda/kernels/common.cuh"

namespace h3::cuda {

inline constexpr int kSparseRows = static_cast<int>(kSparseBlock);
inline constexpr int kSparseDim = 128;  // of the heads that tensor cores take

// Everything one call works on. Summaries are [heads, blocks, d]; statistics [heads, 2, d]: mean, variance.
struct Sparse {
  const char *q, *k, *v;
  char* out;
  int64_t q_row, q_head, k_row, k_head, v_row, v_head, o_row, o_head;  // elements
  int64_t rows, blocks, words;                                         // words: of 32 choices per (head, query block)
  int heads, d;
  float scale_log2, tau;
  int64_t exact_blocks;  // leading key blocks that are always exact
  const uint8_t* mask;   // [blocks, blocks] or null
  int64_t mask_row, mask_column;
  char *kc, *vc;
  float* statistics;
  uint32_t* chosen;  // [heads, blocks, words]: bit n % 32 of word n / 32 = key block n is exact
  uint16_t* list;    // [heads, blocks, blocks]: the exact blocks in order; null for sparse_hopper
  int32_t* count;    // [heads, blocks]
  int32_t* total;    // or null
};

__host__ __device__ inline int sparse_length(const Sparse& a, int64_t n) {
  const int64_t left = a.rows - n * kSparseRows;
  return static_cast<int>(left < kSparseRows ? left : kSparseRows);
}

// The last step, from summaries and choices to the output, by tensor maps and wgmma: whether card, build, type, head
// size and strides allow it, and the step.
bool sparse_hopper_takes(const Sparse& a, DType type);
void sparse_hopper(cudaStream_t stream, const Sparse& a);

}  // namespace h3::cuda
