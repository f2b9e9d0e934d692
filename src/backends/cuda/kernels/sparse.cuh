// What the kernels of sparse attention share (ops.h: sparse_attention).
#pragma once

#include "backends/cuda/kernels/common.cuh"

namespace h3::cuda {

inline constexpr int kSparseRows = static_cast<int>(kSparseBlock);
inline constexpr int kSparseDim = 128;     // of the heads that tensor cores take
inline constexpr int kSparseMaxDim = 256;  // of all others

// sparse_hopper.cu: query blocks of a thread block. A tile of its stream: block << 8 | summaries | who needs it (a bit
// for each query block). Summaries: of 64 blocks from 64 * block on.
inline constexpr int kSparseGroups = 3;
inline constexpr uint32_t kSparseNeeds = (1u << kSparseGroups) - 1, kSparseSummaries = 1u << 7;

// Everything one call works on. Summaries are [heads, blocks, d]; statistics [heads, 2, d]: mean, variance.
struct Sparse {
  const char *q, *k, *v;
  char* out;
  int64_t q_row, q_head, k_row, k_head, v_row, v_head, o_row, o_head;  // elements
  int64_t rows, blocks, words;                                         // words: of 32 choices per (head, query block)
  int heads, d;
  int choices;  // heads that choices are made for: all, or one for all of them (a mask)
  float scale_log2, tau;
  int64_t exact_blocks;  // leading key blocks that are always exact
  const uint8_t* mask;   // [blocks, blocks] or null
  int64_t mask_row, mask_column;
  char *kc, *vc;
  float *centres, *statistics;  // centres: mean queries [heads, blocks, d]; null with a mask, as statistics
  uint32_t* chosen;             // [choices, blocks, words]: bit n % 32 of word n / 32 = key block n is exact
  int32_t* total;               // or null
  // For sparse_hopper, else null.
  uint32_t* streams;      // [choices, thread blocks, tiles]: the tiles in order
  int32_t* stream_tiles;  // [choices, thread blocks]
  // For the others, else null.
  uint16_t* list;  // [choices, blocks, blocks]: the exact blocks in order
  int32_t* count;  // [choices, blocks]
};

__host__ __device__ inline int sparse_length(const Sparse& a, int64_t n) {
  const int64_t left = a.rows - n * kSparseRows;
  return static_cast<int>(left < kSparseRows ? left : kSparseRows);
}
// Of (head, query block): its row of chosen, list and count.
__host__ __device__ inline int64_t sparse_choice(const Sparse& a, int head, int64_t block) {
  return (a.choices == 1 ? 0 : head) * a.blocks + block;
}
// Streams of a head, tiles of summaries, and the room of a stream.
__host__ __device__ inline int64_t sparse_streams(const Sparse& a) {
  return (a.blocks + kSparseGroups - 1) / kSparseGroups;
}
__host__ __device__ inline int64_t sparse_summary_tiles(const Sparse& a) {
  return (a.blocks + kSparseRows - 1) / kSparseRows;
}
__host__ __device__ inline int64_t sparse_stream_room(const Sparse& a) { return a.blocks + sparse_summary_tiles(a); }

// sparse_prepare.cu: summaries and choices, and streams or lists, whichever of them `a` has.
void sparse_prepare(cudaStream_t stream, const Sparse& a, DType type);

// The last step, from summaries and choices to the output, by tensor maps and wgmma: whether card, build, type, head
// size and strides allow it, and the step.
bool sparse_hopper_takes(const Sparse& a, DType type);
void sparse_hopper(cudaStream_t stream, const Sparse& a);

}  // namespace h3::cuda
