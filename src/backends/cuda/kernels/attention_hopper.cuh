// Attention on compute capability 9.0, exact and in eight bits: what all of it shares (ops.h: Ops::attention).
//
// Persistent thread blocks take tiles of three times 64 queries of a head, one warp group each. One thread streams the
// head's keys and values, last first, through two rings in shared memory. While a warp group turns scores into weights
// the other two keep the tensor cores busy; in the exact kernel its own weighted values of the tile before do too.
// Neighbouring blocks work on the same head, so that its keys stay in the second-level cache.
#pragma once

#include "backends/cuda/kernels/hopper.cuh"
#include "backends/cuda/tensor_map.h"

namespace h3::cuda {

inline constexpr int kHopperDim = 128, kHopperRows = 64, kHopperGroups = 3;
inline constexpr int kHopperThreads = (kHopperGroups + 1) * kWarpGroup;

struct HopperMaps {
  CUtensorMap q, k, v;
};

// How tiles are dealt to `blocks` thread blocks in turns. Of a last turn that would leave more than half of them idle
// the tiles are cut into `pieces`.
struct HopperDeal {
  int tiles_per_head = 0, whole = 0, items = 0, pieces = 1;
};

struct HopperJob {
  void* out;
  int64_t o_row, o_head;  // elements
  int queries, keys, heads;
  float scale_log2;
  HopperDeal deal;
  // Eight bits only: scales of rows of q [heads, q_rows], of blocks of keys [heads, key_blocks], of channels [heads,
  // 128].
  const float *q_scale, *k_scale, *v_scale;
  int64_t q_rows, key_blocks;
  // Heads of 64 only, in batches: `heads` are those of all sequences, of which each has heads_of_one; o_batch elements
  // from one sequence to the next.
  int64_t o_batch;
  int heads_of_one;
};

inline HopperDeal deal_tiles(int64_t queries, int heads, int blocks) {
  HopperDeal deal;
  deal.tiles_per_head = static_cast<int>(ceil_div(queries, int64_t{kHopperRows} * kHopperGroups));
  const int tiles = deal.tiles_per_head * heads, rest = tiles % blocks;
  if (rest > 0 && 2 * rest <= blocks) deal.pieces = 3 * rest <= blocks ? 3 : 2;
  deal.whole = deal.pieces == 1 ? tiles : tiles - rest;
  deal.items = deal.pieces == 1 ? tiles : deal.whole + rest * deal.pieces;
  return deal;
}

template <class Math>
constexpr size_t kHopperShared = size_t{kHopperGroups} * Math::kQueryStages* Math::kQueryBytes +
                                 size_t{2} * Math::kStages* Math::kTileBytes + 1024;  // its alignment

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Registers a thread. The launch gives out 128 to each of 512 threads.
inline constexpr int kHopperCopyRegisters = 32, kHopperRegisters = 160;
static_assert(kHopperCopyRegisters + kHopperGroups * kHopperRegisters == 4 * 128);

template <class Math>
struct HopperRing {
  uint64_t k_full[Math::kStages], k_empty[Math::kStages], v_full[Math::kStages], v_empty[Math::kStages];
  uint64_t q_full[Math::kQueryStages][kHopperGroups], q_empty[Math::kQueryStages][kHopperGroups];
};

template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// A tile, or a piece of one: `groups` times 64 queries.
struct HopperItem {
  int head, row, groups;
  __device__ HopperItem(const HopperDeal& deal, int i) {
    int tile = i, first = 0;
    groups = kHopperGroups;
    if (i >= deal.whole) {
      const int cut = i - deal.whole, piece = cut % deal.pieces;
      tile = deal.whole + cut / deal.pieces;
      first = deal.pieces == 3 ? piece : 2 * piece;
      groups = deal.pieces == 3 || piece == 1 ? 1 : 2;
    }
    head = tile / deal.tiles_per_head;
    row = ((tile - head * deal.tiles_per_head) * kHopperGroups + first) * kHopperRows;
  }
};

// The tiles in shared memory: queries of the warp groups, then pairs of keys and values.
template <class Math>
__device__ inline uint32_t query_tile(uint32_t tiles, int stage, int group) {
  return tiles + (stage * kHopperGroups + group) * Math::kQueryBytes;
}
template <class Math>
__device__ inline uint32_t key_tile(uint32_t tiles, int stage) {
  return tiles + Math::kQueryStages * kHopperGroups * Math::kQueryBytes + 2 * stage * Math::kTileBytes;
}

// The last two coordinates of a head in its map: heads of 128 are two halves, heads of 64 lie in sequences.
template <class Math>
struct HeadPlace {
  int c2, c3;
  __device__ HeadPlace(const HopperJob& job, int head)
      : c2(Math::kDim == kHopperDim ? 0 : head % job.heads_of_one),
        c3(Math::kDim == kHopperDim ? head : head / job.heads_of_one) {}
};

// One thread.
template <class Math>
struct HopperProducer {
  const HopperMaps& maps;
  HopperRing<Math>& ring;
  uint32_t tiles;
  RingPlace<Math::kStages> keys{}, values{};
  RingPlace<Math::kQueryStages> queries{};

  __device__ void fetch_keys(int row, const HeadPlace<Math>& head) {
    barrier_wait(ring.k_empty[keys.stage], keys.parity ^ 1);
    barrier_arrive_expecting(ring.k_full[keys.stage], Math::kTileBytes);
    copy_box(key_tile<Math>(tiles, keys.stage), &maps.k, 0, row, head.c2, head.c3, ring.k_full[keys.stage]);
    keys.next();
  }
  __device__ void fetch_values(int row, const HeadPlace<Math>& head) {
    barrier_wait(ring.v_empty[values.stage], values.parity ^ 1);
    barrier_arrive_expecting(ring.v_full[values.stage], Math::kTileBytes);
    const int c0 = Math::kValuesByChannel ? row : 0, c1 = Math::kValuesByChannel ? 0 : row;
    copy_box(key_tile<Math>(tiles, values.stage) + Math::kTileBytes, &maps.v, c0, c1, head.c2, head.c3,
             ring.v_full[values.stage]);
    values.next();
  }
  __device__ void run(const HopperJob& job, int last_row) {
#pragma unroll 1
    for (int i = blockIdx.x; i < job.deal.items; i += gridDim.x) {
      const HopperItem item(job.deal, i);
      const HeadPlace<Math> head(job, item.head);
      fetch_keys(last_row, head);
#pragma unroll 1
      for (int g = 0; g < kHopperGroups; ++g) {  // of those that have no queries too: they only count
        barrier_wait(ring.q_empty[queries.stage][g], queries.parity ^ 1);
        barrier_arrive_expecting(ring.q_full[queries.stage][g], Math::kQueryBytes);
        copy_box(query_tile<Math>(tiles, queries.stage, g), &maps.q, 0, item.row + g * kHopperRows, head.c2, head.c3,
                 ring.q_full[queries.stage][g]);
      }
      queries.next();
#pragma unroll 1
      for (int row = last_row; row > 0; row -= Math::kTileKeys) {
        fetch_keys(row - Math::kTileKeys, head);
        fetch_values(row, head);
      }
      fetch_values(0, head);
    }
  }
};

// A thread's share of 64 queries: rows lane / 4 and lane / 4 + 8 of its warp's sixteen. base: in base 2, what weights
// are relative to.
struct HopperRows {
  float base[2], sum[2], keep[2];
};

// The largest score of a row in this tile.
template <int n>
__device__ inline float largest_score(const float (&s)[n], int half) {
  float a = fmaxf(s[2 * half], s[2 * half + 1]), b = fmaxf(s[4 + 2 * half], s[5 + 2 * half]);
#pragma unroll
  for (int j = 2; j < n / 4; j += 2) {
    a = fmaxf(a, fmaxf(s[4 * j + 2 * half], s[4 * j + 2 * half + 1]));
    b = fmaxf(b, fmaxf(s[4 * j + 4 + 2 * half], s[4 * j + 5 + 2 * half]));
  }
  a = fmaxf(a, b);
  a = fmaxf(a, __shfl_xor_sync(0xffffffffu, a, 1));
  return fmaxf(a, __shfl_xor_sync(0xffffffffu, a, 2));
}

// Scores become weights 2^(s factor + shift), and the sum and what keeps of it follow the base.
template <int n>
__device__ inline void weigh_scores(float (&s)[n], HopperRows& rows, int half, float factor, float base, float shift) {
  rows.keep[half] = exp2_fast(rows.base[half] - base);
  rows.base[half] = base;
  float a = 0, b = 0;
#pragma unroll
  for (int j = 0; j < n / 4; ++j) {
    float &x = s[4 * j + 2 * half], &y = s[4 * j + 2 * half + 1];
    x = exp2_fast(fmaf(x, factor, shift));
    y = exp2_fast(fmaf(y, factor, shift));
    a += x, b += y;
  }
  rows.sum[half] = fmaf(rows.sum[half], rows.keep[half], a + b);
}

template <int n>
__device__ inline void mask_scores(float (&s)[n], int valid) {
  const int column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if (8 * (i / 4) + column + (i & 1) >= valid) s[i] = -INFINITY;
  }
}

template <int n>
__device__ inline void rescale(float (&o)[n], const float (&keep)[2]) {
  if (!__any_sync(0xffffffffu, keep[0] != 1.0f || keep[1] != 1.0f)) return;  // as a rule, after the first steps
#pragma unroll
  for (int i = 0; i < n; ++i) o[i] *= keep[i >> 1 & 1];
}

__device__ inline float row_sum(float share) {
  share += __shfl_xor_sync(0xffffffffu, share, 1);
  return share + __shfl_xor_sync(0xffffffffu, share, 2);
}

__device__ inline void release(uint64_t& empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}

// A warp group's way through tiles and rings.
template <class Math>
class HopperWalk {
 public:
  __device__ HopperWalk(const HopperJob& job, HopperRing<Math>& ring, uint32_t tiles)
      : job_(job),
        ring_(ring),
        tiles_(tiles),
        group_(__shfl_sync(0xffffffffu, threadIdx.x / kWarpGroup, 0)),  // one for the warp, as the compiler now knows
        count_((job.keys + Math::kTileKeys - 1) / Math::kTileKeys) {}

 protected:
  // attend(head, first row of this group)
  template <class Attend>
  __device__ void walk(const Attend& attend) {
    for (int i = blockIdx.x; i < job_.deal.items; i += gridDim.x) {
      const HopperItem item(job_.deal, i);
      barrier_wait(ring_.q_full[queries_.stage][group_], queries_.parity);
      const int row = item.row + group_ * kHopperRows;
      if (group_ < item.groups && row < job_.queries)
        attend(item.head, row);
      else
        pass();
    }
  }

  __device__ uint32_t queries_here() const { return query_tile<Math>(tiles_, queries_.stage, group_); }
  __device__ uint32_t keys_here() const { return key_tile<Math>(tiles_, keys_.stage); }
  __device__ uint32_t values_here() const { return key_tile<Math>(tiles_, values_.stage) + Math::kTileBytes; }
  __device__ void wait_keys() { barrier_wait(ring_.k_full[keys_.stage], keys_.parity); }
  __device__ void wait_values() { barrier_wait(ring_.v_full[values_.stage], values_.parity); }
  __device__ void leave_queries() {
    release(ring_.q_empty[queries_.stage][group_]);
    queries_.next();
  }
  __device__ void leave_keys() {
    release(ring_.k_empty[keys_.stage]);
    keys_.next();
  }
  __device__ void leave_values() {
    release(ring_.v_empty[values_.stage]);
    values_.next();
  }

  const HopperJob& job_;
  HopperRing<Math>& ring_;
  uint32_t tiles_;
  int group_, count_;

 private:
  // No queries: the tiles go by.
  __device__ void pass() {
    leave_queries();
    for (int j = 0; j < count_; ++j) {
      wait_keys();
      leave_keys();
      wait_values();
      leave_values();
    }
  }

 protected:
  RingPlace<Math::kQueryStages> queries_{};
  RingPlace<Math::kStages> keys_{}, values_{};
};

template <class Math>
class HopperConsumer : private HopperWalk<Math> {
 public:
  using HopperWalk<Math>::HopperWalk;
  __device__ void run() {
    this->walk([&](int head, int row) { attend(head, row); });
  }

 private:
  using Scores = float[Math::kTileKeys / 2];
  using Weights = uint32_t[Math::kWeightRegisters];
  using HopperWalk<Math>::job_, HopperWalk<Math>::count_, HopperWalk<Math>::queries_here, HopperWalk<Math>::keys_here,
      HopperWalk<Math>::values_here, HopperWalk<Math>::wait_keys, HopperWalk<Math>::wait_values,
      HopperWalk<Math>::leave_queries, HopperWalk<Math>::leave_keys, HopperWalk<Math>::leave_values;

  __device__ void scores(Scores& s) {
    wait_keys();
    Math::before_scores(s);
    products_begin();
    Math::issue_scores(s, queries_here(), keys_here());
    products_end();
    products_wait();
    settle(s);
    leave_keys();
  }
  __device__ void weighted_values(float (&o)[64], Weights& p) {
    wait_values();
    settle(p);
    settle(o);
    products_begin();
    Math::issue_values(o, p, values_here());
    products_end();
    products_wait();
    settle(o);
    leave_values();
  }
  // The scores of tile j beside the weighted values of tile j + 1.
  __device__ void overlapped(Math& math, HopperRows& rows, float (&o)[64], Weights& p, int j) {
    Scores s;
    wait_keys();
    settle(p);
    settle(o);
    products_begin();
    Math::issue_scores(s, queries_here(), keys_here());
    products_end();
    wait_values();
    products_begin();
    Math::issue_values(o, p, values_here());
    products_end();
    products_wait_but_last();
    settle(s);
    leave_keys();
    math.weigh(s, rows, j);
    settle(s);  // weights are made while the values are on their way
    products_wait();
    settle(o);
    leave_values();
    Math::pack(s, p);
    rescale(o, rows.keep);
  }
  __device__ void in_turn(Math& math, HopperRows& rows, float (&o)[64], Weights& p, int j) {
    weighted_values(o, p);
    Scores s;
    scores(s);
    math.weigh(s, rows, j);
    Math::pack(s, p);
    rescale(o, rows.keep);
  }

  __device__ void attend(int head, int row) {
    Math math(job_, head, row);
    float o[64];
    Weights p;
    HopperRows rows{{-INFINITY, -INFINITY}, {0, 0}, {1, 1}};
#pragma unroll
    for (int i = 0; i < 64; ++i) o[i] = 0;
    {
      Scores s;
      scores(s);
      const int last = count_ - 1, valid = job_.keys - last * Math::kTileKeys;
      if (valid < Math::kTileKeys) mask_scores(s, valid);
      math.weigh(s, rows, last);
      Math::pack(s, p);
    }
    for (int j = count_ - 2; j >= 0; --j) {
      if constexpr (Math::kOverlap)
        overlapped(math, rows, o, p, j);
      else
        in_turn(math, rows, o, p, j);
    }
    leave_queries();
    weighted_values(o, p);
    math.store(o, rows, head, row);
  }
};

template <class Math>
struct ConsumerOf {
  using Type = HopperConsumer<Math>;
};

#endif

template <class Math>
__global__ void __launch_bounds__(kHopperThreads, 1)
    attention_hopper_kernel(const __grid_constant__ HopperMaps maps, const __grid_constant__ HopperJob job) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char raw[];
  __shared__ HopperRing<Math> ring;
  const uint32_t tiles = (shared_address(raw) + 1023) / 1024 * 1024;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Math::kStages; ++i) {
      barrier_init(ring.k_full[i], 1);
      barrier_init(ring.v_full[i], 1);
      barrier_init(ring.k_empty[i], kHopperGroups * kWarpGroup / 32);
      barrier_init(ring.v_empty[i], kHopperGroups * kWarpGroup / 32);
    }
    for (int i = 0; i < Math::kQueryStages * kHopperGroups; ++i) {
      barrier_init(ring.q_full[i / kHopperGroups][i % kHopperGroups], 1);
      barrier_init(ring.q_empty[i / kHopperGroups][i % kHopperGroups], kWarpGroup / 32);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x / kWarpGroup == kHopperGroups) {
    give_registers<kHopperCopyRegisters>();
    if (threadIdx.x % kWarpGroup == 0) {
      HopperProducer<Math> producer{maps, ring, tiles};
      producer.run(job, (job.keys - 1) / Math::kTileKeys * Math::kTileKeys);
    }
  } else {
    take_registers<kHopperRegisters>();
    typename ConsumerOf<Math>::Type(job, ring, tiles).run();
  }
#endif
}

template <class Math>
void launch_hopper(cudaStream_t stream, const char* name, const HopperMaps& maps, HopperJob job) {
  const int blocks = processors_of_this_card();
  job.deal = deal_tiles(job.queries, job.heads, blocks);
  const LaunchShape shape{dim3(static_cast<unsigned>(std::min(blocks, job.deal.items))), dim3(kHopperThreads),
                          kHopperShared<Math>};
  launch(stream, name, attention_hopper_kernel<Math>, shape, maps, job);
}

}  // namespace h3::cuda
