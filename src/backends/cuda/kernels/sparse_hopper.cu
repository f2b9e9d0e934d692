// Block-sparse attention on compute capability 9.0. A thread block works on three query blocks of a head, one warp
// group each. One warp streams the tiles that any of them needs (summaries first, then the union of their exact blocks)
// through a ring in shared memory, each with a note of who needs it: what neighbours share is read once. Without that
// the reads of the L2 cache, not the tensor cores, would set the pace. The groups run free of each other within the
// ring, so that the softmax of one overlaps the products of the others.
#include "backends/cuda/kernels/hopper.cuh"
#include "backends/cuda/kernels/sparse.cuh"
#include "backends/cuda/tensor_map.h"

namespace h3::cuda {
namespace {

constexpr int kGroups = 3;  // query blocks; four would leave each too few registers
constexpr int kStages = 5;
constexpr int kThreads = (kGroups + 1) * kWarpGroup;
// Per thread. A quarter of the processor has 512 for its warps, one of each group; the launch gives out all of them.
constexpr int kCopyRegisters = 32, kComputeRegisters = (512 - kCopyRegisters) / kGroups;
static_assert(512 / (kGroups + 1) % 8 == 0 && kComputeRegisters % 8 == 0);
constexpr uint32_t kTileBytes = kSparseRows * kSparseDim * 2;  // two halves of 64 channels: [2][64 rows][128 bytes]
constexpr size_t kSharedBytes = size_t{kTileBytes} * (kGroups + 2 * kStages) + 1024;  // 1024: alignment of the swizzle

struct Maps {
  CUtensorMap q, k, v, kc, vc;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr uint32_t kHalfBytes = kTileBytes / 2;
// What lies in a stage: block << 8 | kind | who needs it.
constexpr uint32_t kSummaries = 1u << 6, kEnd = 1u << 7;

struct Ring {
  uint64_t full[kStages], empty[kStages], queries;
  uint32_t entry[kStages];
};

// Walks the stages in order.
struct Cursor {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// The tiles, in shared memory: queries of the groups, then pairs of keys and values.
__device__ inline uint32_t stage_tile(uint32_t tiles, int stage) { return tiles + (kGroups + 2 * stage) * kTileBytes; }

// One warp. Blocks are visited in ascending order, so that all thread blocks of a head read about the same keys at
// about the same time.
class Producer {
 public:
  __device__ Producer(const Maps& maps, Ring& ring, uint32_t tiles, int head)
      : maps_(maps), ring_(ring), tiles_(tiles), head_(head), lane_(threadIdx.x % 32) {}

  __device__ void queries(int64_t first_block, int valid) {
    if (lane_ != 0) return;
    barrier_arrive_expecting(ring_.queries, valid * kTileBytes);
    for (int g = 0; g < valid; ++g) {
      copy_box(tiles_ + g * kTileBytes, &maps_.q, 0, static_cast<int>(first_block + g) * kSparseRows, 0, head_,
               ring_.queries);
    }
  }

  __device__ void push(uint32_t entry) {
    barrier_wait(ring_.empty[at_.stage], at_.parity ^ 1);
    if (lane_ == 0) {
      uint64_t& full = ring_.full[at_.stage];
      ring_.entry[at_.stage] = entry;
      if ((entry & kEnd) != 0) {
        barrier_arrive(full);
      } else {
        const bool summaries = (entry & kSummaries) != 0;
        const int row = static_cast<int>(entry >> 8) * kSparseRows;
        const uint32_t tile = stage_tile(tiles_, at_.stage);
        barrier_arrive_expecting(full, 2 * kTileBytes);
        copy_box(tile, summaries ? &maps_.kc : &maps_.k, 0, row, 0, head_, full);
        copy_box(tile + kTileBytes, summaries ? &maps_.vc : &maps_.v, 0, row, 0, head_, full);
      }
    }
    __syncwarp();
    at_.next();
  }

  // chosen [valid, words]: of the query blocks of this thread block.
  __device__ void exact_blocks(const uint32_t* chosen, int64_t words, int valid) {
    for (int64_t word = 0; word < words; ++word) {
      const uint32_t mine = lane_ < valid ? chosen[lane_ * words + word] : 0;
      uint32_t needed = 0;  // by whom: block 32 word + lane
#pragma unroll
      for (int g = 0; g < kGroups; ++g) needed |= (__shfl_sync(0xffffffffu, mine, g) >> lane_ & 1) << g;
      for (uint32_t left = __ballot_sync(0xffffffffu, needed != 0); left != 0; left &= left - 1) {
        const int bit = __ffs(static_cast<int>(left)) - 1;
        push(static_cast<uint32_t>(word * 32 + bit) << 8 | __shfl_sync(0xffffffffu, needed, bit));
      }
    }
  }

 private:
  const Maps& maps_;
  Ring& ring_;
  uint32_t tiles_;
  int head_, lane_;
  Cursor at_;
};

// Keys of a tile that take no part, and how much each of the others counts in the sum.
struct KeyWeights {
  uint64_t excluded = 0;
  float weight = 1, last_weight = 1;
  int last = -1;  // the key with last_weight
  __device__ float of(int key) const { return key == last ? last_weight : weight; }
};

// A thread's share of 64 queries: rows lane / 4 and lane / 4 + 8 of its warp's sixteen.
struct QueryState {
  float o[64], top[2], sum[2];
};

// Scores become weights in p; the state is rescaled to the new maximum.
template <bool kWeighted>
__device__ inline void softmax_tile(QueryState& f, float (&s)[32], uint32_t (&p)[16], float scale_log2,
                                    const KeyWeights& keys) {
  const int column = threadIdx.x % 4 * 2;
  if constexpr (kWeighted) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if ((keys.excluded >> (8 * j + column + e) & 1) != 0) s[4 * j + e] = s[4 * j + 2 + e] = -INFINITY;
      }
    }
  }
  float keep[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = f.top[half];
#pragma unroll
    for (int j = 0; j < 8; ++j) top = fmaxf(top, fmaxf(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float base = top == -INFINITY ? 0.0f : top * scale_log2;
    keep[half] = exp2_fast(fmaf(f.top[half], scale_log2, -base));
    f.top[half] = top;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& v = s[4 * j + 2 * half + e];
        v = exp2_fast(fmaf(v, scale_log2, -base));
        sum += kWeighted ? v * keys.of(8 * j + column + e) : v;
      }
    }
    f.sum[half] = fmaf(f.sum[half], keep[half], sum);
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) p[i] = round_pair(s[2 * i], s[2 * i + 1]);
  if (__any_sync(0xffffffffu, keep[0] != 1.0f || keep[1] != 1.0f)) {  // rare after the first tiles
#pragma unroll
    for (int i = 0; i < 64; ++i) f.o[i] *= keep[i >> 1 & 1];
  }
}

// One warp group and its query block.
__device__ inline void attend_tile(QueryState& f, uint32_t queries, uint32_t tile, float scale_log2, bool weighted,
                                   const KeyWeights& keys) {
  float s[32];
  const uint64_t q = tile_descriptor(queries, 16), k = tile_descriptor(tile, 16);
  products_begin();
#pragma unroll
  for (int kk = 0; kk < kSparseDim / 16; ++kk) {
    const uint64_t along = (kk / 4 * kHalfBytes + kk % 4 * 32) / 16;
    product_64(s, q + along, k + along, kk);
  }
  products_end();
  products_wait();
  uint32_t p[16];
  if (weighted)
    softmax_tile<true>(f, s, p, scale_log2, keys);
  else
    softmax_tile<false>(f, s, p, scale_log2, keys);
  const uint64_t v = tile_descriptor(tile + kTileBytes, kHalfBytes);
  products_begin();
#pragma unroll
  for (int kk = 0; kk < kSparseRows / 16; ++kk) product_128(f.o, p + 4 * kk, v + kk * 16 * 128 / 16);
  products_end();
  products_wait();
}

// Which summaries of tile `first` .. take part: those of blocks that are not exact.
__device__ inline KeyWeights summary_weights(const Sparse& a, const uint32_t* chosen, int64_t first) {
  const int64_t word = first / 32, left = a.blocks - first;
  KeyWeights keys;
  keys.excluded = chosen[word] | (word + 1 < a.words ? uint64_t{chosen[word + 1]} << 32 : 0);
  if (left < kSparseRows) keys.excluded |= ~uint64_t{0} << left;
  keys.weight = kSparseRows;
  if (left <= kSparseRows) keys.last = static_cast<int>(left) - 1;
  keys.last_weight = static_cast<float>(sparse_length(a, a.blocks - 1));
  return keys;
}

__device__ inline void store_rows(const Sparse& a, QueryState& f, int head, int64_t first_row) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  bf16* out = reinterpret_cast<bf16*>(a.out) + head * a.o_head + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = f.sum[half];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const int64_t row = first_row + warp * 16 + lane / 4 + half * 8;
    if (row >= a.rows) continue;
#pragma unroll
    for (int j = 0; j < kSparseDim / 8; ++j) {
      *reinterpret_cast<uint32_t*>(out + row * a.o_row + 8 * j) =
          round_pair(f.o[4 * j + 2 * half] / sum, f.o[4 * j + 2 * half + 1] / sum);
    }
  }
}

__device__ inline void produce(const Maps& maps, const Sparse& a, Ring& ring, uint32_t tiles) {
  const int64_t first_block = int64_t{blockIdx.x} * kGroups;
  const int head = blockIdx.y, valid = static_cast<int>(min(int64_t{kGroups}, a.blocks - first_block));
  Producer producer(maps, ring, tiles, head);
  producer.queries(first_block, valid);
  for (int64_t t = 0; t * kSparseRows < a.blocks; ++t) {
    producer.push(static_cast<uint32_t>(t) << 8 | kSummaries | ((1u << valid) - 1));
  }
  producer.exact_blocks(a.chosen + (head * a.blocks + first_block) * a.words, a.words, valid);
  producer.push(kEnd);
}

__device__ inline void consume(const Sparse& a, Ring& ring, uint32_t tiles) {
  const int head = blockIdx.y, group = threadIdx.x / kWarpGroup;
  const int64_t block = int64_t{blockIdx.x} * kGroups + group;
  const uint32_t* chosen = a.chosen + (head * a.blocks + block) * a.words;
  QueryState f;
#pragma unroll
  for (int i = 0; i < 64; ++i) f.o[i] = 0;
  f.top[0] = f.top[1] = -INFINITY;
  f.sum[0] = f.sum[1] = 0;
  barrier_wait(ring.queries, 0);
  for (Cursor at;; at.next()) {
    barrier_wait(ring.full[at.stage], at.parity);
    const uint32_t entry = ring.entry[at.stage];
    if ((entry & kEnd) != 0) break;
    if ((entry >> group & 1) != 0) {
      const int64_t n = entry >> 8;
      KeyWeights keys;
      const bool summaries = (entry & kSummaries) != 0, weighted = summaries || sparse_length(a, n) < kSparseRows;
      if (summaries)
        keys = summary_weights(a, chosen, n * kSparseRows);
      else if (weighted)
        keys.excluded = ~uint64_t{0} << sparse_length(a, n);
      attend_tile(f, tiles + group * kTileBytes, stage_tile(tiles, at.stage), a.scale_log2, weighted, keys);
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(ring.empty[at.stage]);
  }
  store_rows(a, f, head, block * kSparseRows);
}

#endif

__global__ void __launch_bounds__(kThreads, 1)
    sparse_hopper_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Sparse a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char raw[];
  __shared__ Ring ring;
  const uint32_t tiles = (shared_address(raw) + 1023) / 1024 * 1024;
  const int group = threadIdx.x / kWarpGroup;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(ring.full[i], 1);
      barrier_init(ring.empty[i], kGroups * kWarpGroup / 32);
    }
    barrier_init(ring.queries, 1);
    barrier_init_done();
  }
  __syncthreads();
  if (group == kGroups) {
    give_registers<kCopyRegisters>();
    if (threadIdx.x % kWarpGroup < 32) produce(maps, a, ring, tiles);
  } else {
    take_registers<kComputeRegisters>();
    consume(a, ring, tiles);
  }
#endif
}

}  // namespace

bool sparse_hopper_takes(const Sparse& a, DType type) {
  const int64_t strides = a.q_row | a.q_head | a.k_row | a.k_head | a.v_row | a.v_head;
  const uintptr_t addresses =
      reinterpret_cast<uintptr_t>(a.q) | reinterpret_cast<uintptr_t>(a.k) | reinterpret_cast<uintptr_t>(a.v);
  const bool reads = strides % 8 == 0 && addresses % 16 == 0;
  const bool writes = (a.o_row | a.o_head) % 2 == 0 && reinterpret_cast<uintptr_t>(a.out) % 4 == 0;
  if (type != DType::bf16 || a.d != kSparseDim || !reads || !writes) return false;
  return has_tensor_maps();
}

void sparse_hopper(cudaStream_t stream, const Sparse& a) {
  const int64_t summary_head = a.blocks * kSparseDim;
  const auto map = [&](const void* base, int64_t rows, int64_t row, int64_t head) {
    return head_map(base, rows, row, a.heads, head, kSparseRows, "sparse attention");
  };
  const Maps maps{.q = map(a.q, a.rows, a.q_row, a.q_head),
                  .k = map(a.k, a.rows, a.k_row, a.k_head),
                  .v = map(a.v, a.rows, a.v_row, a.v_head),
                  .kc = map(a.kc, a.blocks, kSparseDim, summary_head),
                  .vc = map(a.vc, a.blocks, kSparseDim, summary_head)};
  const LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(a.blocks, kGroups)), static_cast<unsigned>(a.heads)),
                          dim3(kThreads), kSharedBytes};
  launch(stream, "sparse_attention", sparse_hopper_kernel, shape, maps, a);
}

}  // namespace h3::cuda
