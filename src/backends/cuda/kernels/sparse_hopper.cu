// Block-sparse attention on compute capability 9.0. A thread block works on three query blocks of a head, one warp
// group each, and fetches every tile that any of them needs once. The order of the tiles, its stream, is made before
// (sparse_prepare.cu). Two warps fetch its keys and its values into two rings. A group goes from one of its own tiles
// to the next, past the others, and makes weights from the scores of one while the weighted values of the tile before
// are on their way.
#include "backends/cuda/kernels/attention_hopper.cuh"
#include "backends/cuda/kernels/sparse.cuh"
#include "backends/cuda/tensor_map.h"

namespace h3::cuda {
namespace {

constexpr int kGroups = kSparseGroups;
constexpr int kKeyStages = 5, kValueStages = 6;
constexpr int kThreads = (kGroups + 1) * kWarpGroup, kGroupWarps = kWarpGroup / 32;
// Per thread. A quarter of the processor has 512 for its warps, one of each group; the launch gives out all of them.
constexpr int kCopyRegisters = 32, kComputeRegisters = (512 - kCopyRegisters) / kGroups;
static_assert(512 / (kGroups + 1) % 8 == 0 && kComputeRegisters % 8 == 0);
// Two halves of 64 channels: [2][64 rows][128 bytes].
constexpr uint32_t kTileBytes = kSparseRows * kSparseDim * 2, kHalfBytes = kTileBytes / 2;
constexpr size_t kSharedBytes = size_t{kTileBytes} * (kGroups + kKeyStages + kValueStages) + 1024;  // its alignment
// A group that has made weights keeps their values waiting until it has scores of its next tile, unless that is as far
// as this in the stream. Under kKeyStages + kValueStages, or groups would wait for each other for ever.
constexpr int kFar = 5;

struct Maps {
  CUtensorMap q, k, v, kc, vc;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Tile i of the stream goes through stage i % kStages. `issued`: tiles whose copies are on their way, or have come. A
// group that passes tiles must see it first: of a stage that is still a round behind, the barrier's parity is the same.
template <int kStages>
struct TileRing {
  uint64_t full[kStages], empty[kStages];
  uint32_t issued;

  __device__ void init() {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full[i], 1);
      barrier_init(empty[i], kGroups * kGroupWarps);
    }
    issued = 0;
  }
  __device__ void wait(int tile) {
    uint32_t n;
    do {
      asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(n) : "r"(shared_address(&issued)) : "memory");
    } while (static_cast<int>(n) <= tile);
    barrier_wait(full[tile % kStages], tile / kStages & 1);
  }
};

struct Rings {
  TileRing<kKeyStages> keys;
  TileRing<kValueStages> values;
  uint64_t queries;
};

__device__ inline void arrive_times(uint64_t& barrier, uint32_t times) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(times) : "memory");
}
// What a warp reads of a stream, 32 tiles at a time and 32 ahead.
struct Stream {
  const uint32_t* list;
  int tiles, first;
  uint32_t now, ahead;

  __device__ Stream(const uint32_t* from, int count) : list(from), tiles(count), first(0) {
    now = read(0);
    ahead = read(32);
  }
  __device__ uint32_t read(int from) const {
    const int i = from + static_cast<int>(threadIdx.x % 32);
    return i < tiles ? list[i] : 0;
  }
  __device__ void advance() {
    first += 32;
    now = ahead;
    ahead = read(first + 32);
  }
};

// One warp: all keys or all values of the stream. `room`: the first stage.
template <int kStages>
__device__ inline void fetch(TileRing<kStages>& ring, const CUtensorMap& rows, const CUtensorMap& summaries,
                             uint32_t room, Stream stream, int head) {
  int stage = 0;
  uint32_t parity = 1;
  for (; stream.first < stream.tiles; stream.advance()) {
#pragma unroll 1
    for (int i = 0; i < min(32, stream.tiles - stream.first); ++i) {
      const uint32_t tile = __shfl_sync(0xffffffffu, stream.now, i);
      if (threadIdx.x % 32 == 0) {
        uint64_t& full = ring.full[stage];
        barrier_wait(ring.empty[stage], parity);
        asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(shared_address(&ring.issued)),
                     "r"(stream.first + i + 1)
                     : "memory");
        // Whoever does not need the tile will not say that it is done with it.
        const int idle = kGroups - __popc(tile & kSparseNeeds);
        if (idle > 0) arrive_times(ring.empty[stage], idle * kGroupWarps);
        const CUtensorMap* map = (tile & kSparseSummaries) != 0 ? &summaries : &rows;
        const int row = static_cast<int>(tile >> 8) * kSparseRows;
        barrier_arrive_expecting(full, kTileBytes);
        copy_box(room + stage * kTileBytes, map, 0, row, 0, head, full);
      }
      __syncwarp();
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  }
}

// Keys of a tile that take no part, and how much each of the others counts in the sum.
struct KeyWeights {
  uint64_t excluded = 0;
  float weight = 1, last_weight = 1;
  int last = -1;  // the key with last_weight
  __device__ float of(int key) const { return key == last ? last_weight : weight; }
};

// Scores become weights relative to the largest score so far, and the sums and what keeps of them follow.
template <bool kWeighted>
__device__ inline void weigh_tile(float (&s)[32], HopperRows& rows, float scale_log2, const KeyWeights& keys) {
  const int column = threadIdx.x % 4 * 2;
  if constexpr (kWeighted) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if ((keys.excluded >> (8 * (i / 4) + column + (i & 1)) & 1) != 0) s[i] = -INFINITY;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float base = fmaxf(rows.base[half], largest_score(s, half) * scale_log2);
    const float shift = base == -INFINITY ? 0.0f : -base;  // no key so far
    rows.keep[half] = exp2_fast(rows.base[half] + shift);
    rows.base[half] = base;
    float a = 0, b = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float &x = s[4 * j + 2 * half], &y = s[4 * j + 2 * half + 1];
      x = exp2_fast(fmaf(x, scale_log2, shift));
      y = exp2_fast(fmaf(y, scale_log2, shift));
      a += kWeighted ? x * keys.of(8 * j + column) : x;
      b += kWeighted ? y * keys.of(8 * j + column + 1) : y;
    }
    rows.sum[half] = fmaf(rows.sum[half], rows.keep[half], a + b);
  }
}

// Of summaries from block `first` on those of blocks that are not exact take part.
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

// A warp group and its query block.
class Attender {
 public:
  __device__ Attender(const Sparse& a, Rings& rings, uint32_t tiles, const Stream& stream, int group)
      : a_(a), rings_(rings), tiles_(tiles), stream_(stream), group_(group) {
    find();
  }

  __device__ void run(int head, int64_t block) {
    Place at, held;
    if (!next(at)) return;
    chosen_ = a_.chosen + sparse_choice(a_, head, block) * a_.words;
    float o[64];
    Weights p;
    HopperRows rows{{-INFINITY, -INFINITY}, {0, 0}, {1, 1}};
#pragma unroll
    for (int i = 0; i < 64; ++i) o[i] = 0;
    barrier_wait(rings_.queries, 0);
    bool more = true;
    while (more) {
      scores(o, p, rows, at);
      held = at;
      more = next(at);
      while (more && at.position - held.position < kFar) {
        scores_beside_values(o, p, rows, at, held);
        held = at;
        more = next(at);
      }
      values(o, p, held);
    }
    store(o, rows, head, block * kSparseRows);
  }

 private:
  using Scores = float[kSparseRows / 2];
  using Weights = uint32_t[kSparseRows / 4];
  struct Place {
    int position;
    uint32_t tile;
  };

  __device__ void find() { mine_ = __ballot_sync(0xffffffffu, stream_.now >> group_ & 1); }
  __device__ bool next(Place& at) {
    while (mine_ == 0) {
      if (stream_.first + 32 >= stream_.tiles) return false;
      stream_.advance();
      find();
    }
    const int lane = __ffs(static_cast<int>(mine_)) - 1;
    mine_ &= mine_ - 1;
    at = {stream_.first + lane, __shfl_sync(0xffffffffu, stream_.now, lane)};
    return true;
  }
  template <int kStages>
  __device__ void leave(TileRing<kStages>& ring, const Place& at) {
    release(ring.empty[at.position % kStages]);
  }

  __device__ void issue_scores(Scores& s, const Place& at) {
    const uint32_t keys = tiles_ + (kGroups + at.position % kKeyStages) * kTileBytes;
    const uint64_t q = tile_descriptor(tiles_ + group_ * kTileBytes, 16), k = tile_descriptor(keys, 16);
    products_begin();
#pragma unroll
    for (int kk = 0; kk < kSparseDim / 16; ++kk) {
      const uint64_t along = (kk / 4 * kHalfBytes + kk % 4 * 32) / 16;
      product_64(s, q + along, k + along, kk);
    }
    products_end();
  }
  __device__ void issue_values(float (&o)[64], const Weights& p, const Place& at) {
    const uint32_t values = tiles_ + (kGroups + kKeyStages + at.position % kValueStages) * kTileBytes;
    const uint64_t v = tile_descriptor(values, kHalfBytes);
    products_begin();
#pragma unroll
    for (int kk = 0; kk < kSparseRows / 16; ++kk) product_128(o, p + 4 * kk, v + kk * 16 * 128 / 16);
    products_end();
  }
  __device__ void weigh(Scores& s, HopperRows& rows, const Place& at) {
    const int64_t n = at.tile >> 8;
    if ((at.tile & kSparseSummaries) != 0) {
      weigh_tile<true>(s, rows, a_.scale_log2, summary_weights(a_, chosen_, n * kSparseRows));
    } else if (const int length = sparse_length(a_, n); length < kSparseRows) {
      KeyWeights keys;
      keys.excluded = ~uint64_t{0} << length;
      weigh_tile<true>(s, rows, a_.scale_log2, keys);
    } else {
      weigh_tile<false>(s, rows, a_.scale_log2, {});
    }
  }
  __device__ static void pack(const Scores& s, Weights& p) {
#pragma unroll
    for (int i = 0; i < kSparseRows / 4; ++i) p[i] = round_pair(s[2 * i], s[2 * i + 1]);
  }

  __device__ void scores(float (&o)[64], Weights& p, HopperRows& rows, const Place& at) {
    Scores s;
    rings_.keys.wait(at.position);
    issue_scores(s, at);
    products_wait();
    settle(s);
    leave(rings_.keys, at);
    weigh(s, rows, at);
    pack(s, p);
    rescale(o, rows.keep);
  }
  __device__ void values(float (&o)[64], Weights& p, const Place& at) {
    rings_.values.wait(at.position);
    settle(p);
    settle(o);
    issue_values(o, p, at);
    products_wait();
    settle(o);
    leave(rings_.values, at);
  }
  // The scores of a tile beside the weighted values of the tile before.
  __device__ void scores_beside_values(float (&o)[64], Weights& p, HopperRows& rows, const Place& at,
                                       const Place& held) {
    Scores s;
    rings_.keys.wait(at.position);
    settle(p);
    settle(o);
    issue_scores(s, at);
    rings_.values.wait(held.position);
    issue_values(o, p, held);
    products_wait_but_last();
    settle(s);
    leave(rings_.keys, at);
    weigh(s, rows, at);
    settle(s);  // weights are made while the values are on their way
    products_wait();
    settle(o);
    leave(rings_.values, held);
    pack(s, p);
    rescale(o, rows.keep);
  }

  __device__ void store(const float (&o)[64], const HopperRows& rows, int head, int64_t first_row) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    bf16* const out = reinterpret_cast<bf16*>(a_.out) + head * a_.o_head + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = row_sum(rows.sum[half]);
      const int64_t row = first_row + warp * 16 + lane / 4 + half * 8;
      if (row >= a_.rows) continue;
#pragma unroll
      for (int j = 0; j < kSparseDim / 8; ++j) {
        *reinterpret_cast<uint32_t*>(out + row * a_.o_row + 8 * j) =
            round_pair(o[4 * j + 2 * half] / sum, o[4 * j + 2 * half + 1] / sum);
      }
    }
  }

  const Sparse& a_;
  Rings& rings_;
  uint32_t tiles_;
  Stream stream_;
  int group_;
  uint32_t mine_ = 0;  // of the 32 tiles at hand those that are left
  const uint32_t* chosen_ = nullptr;
};

#endif

__global__ void __launch_bounds__(kThreads, 1)
    sparse_hopper_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Sparse a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char raw[];
  __shared__ Rings rings;
  const uint32_t tiles = (shared_address(raw) + 1023) / 1024 * 1024;
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpGroup, 0);  // one for the warp, as the compiler knows
  const int head = blockIdx.y;
  const int64_t first_block = int64_t{blockIdx.x} * kGroups;
  if (threadIdx.x == 0) {
    rings.keys.init();
    rings.values.init();
    barrier_init(rings.queries, 1);
    barrier_init_done();
  }
  __syncthreads();
  const int64_t place = (a.choices == 1 ? 0 : head) * sparse_streams(a) + blockIdx.x;
  const Stream stream(a.streams + place * sparse_stream_room(a), a.stream_tiles[place]);
  if (group == kGroups) {
    give_registers<kCopyRegisters>();
    const int warp = threadIdx.x / 32 % kGroupWarps;
    const uint32_t keys = tiles + kGroups * kTileBytes, values = keys + kKeyStages * kTileBytes;
    if (warp == 0) {
      if (threadIdx.x % 32 == 0) {
        barrier_arrive_expecting(rings.queries, kGroups * kTileBytes);  // of blocks that do not exist zeros come
        for (int g = 0; g < kGroups; ++g) {
          copy_box(tiles + g * kTileBytes, &maps.q, 0, static_cast<int>(first_block + g) * kSparseRows, 0, head,
                   rings.queries);
        }
      }
      __syncwarp();
      fetch(rings.keys, maps.k, maps.kc, keys, stream, head);
    } else if (warp == 1) {
      fetch(rings.values, maps.v, maps.vc, values, stream, head);
    }
  } else {
    take_registers<kComputeRegisters>();
    Attender(a, rings, tiles, stream, group).run(head, first_block + group);
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
  const LaunchShape shape{dim3(static_cast<unsigned>(sparse_streams(a)), static_cast<unsigned>(a.heads)),
                          dim3(kThreads), kSharedBytes};
  launch(stream, "sparse_attention", sparse_hopper_kernel, shape, maps, a);
}

}  // namespace h3::cuda
