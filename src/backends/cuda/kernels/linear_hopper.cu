// x w^T on compute capability 9.0 together with what follows it. Two thread blocks of a cluster work on 256 rows and
// 256 outputs; each copies its own rows and half of the weights, which go to both. In a block one thread feeds a ring
// in shared memory and two warp groups multiply 64 rows each: the group that is through with a tile first finishes it
// while the other still has the tensor cores, and then runs ahead of it within the ring.
#include "backends/cuda/kernels/hopper.cuh"
#include "backends/cuda/linear_hopper.h"
#include "backends/cuda/tensor_map.h"

namespace h3::cuda {
namespace {

constexpr int kRows = 128, kOuts = 256;  // of a block
constexpr int kGroups = kRows / 64, kStages = 4, kCluster = 2;
constexpr int kThreads = (kGroups + 1) * kWarpGroup;
constexpr int kDepthBytes = 128;  // of a stage, one row of the swizzle
constexpr uint32_t kXBytes = kRows * kDepthBytes, kWBytes = kOuts * kDepthBytes, kStageBytes = kXBytes + kWBytes;
constexpr size_t kSharedBytes = size_t{kStageBytes} * kStages + 1024;  // 1024: alignment of the swizzle
constexpr int kCopyRegisters = 40, kComputeRegisters = 232;
constexpr int kBand = 8;  // tiles of outputs that are worked on side by side, so that the L2 cache holds their weights

struct Maps {
  CUtensorMap x, w;
};

struct Job {
  int rows, steps, row_tiles, out_tiles;  // row_tiles: pairs
  int step, second;                       // elements of depth; distance of the weights' second half of a tile
  int results;                            // features per tile
  const float *bias, *x_scale, *w_scale;
  __half* y;
  int64_t y_pitch;
  float* stream;
  int64_t stream_pitch;
  const float* scale;
  const float *cos, *sin;
  int64_t table_pitch;
  int turned;
  float eps;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

struct Ring {
  uint64_t full[kStages], empty[kStages];
};

// What the columns of a tile are finished with; a group fills one set while it multiplies, the other may still be read.
struct Columns {
  float bias[kOuts], w_scale[kOuts], scale[kOuts];
};

struct Cursor {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline void cluster_meet() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// At the same barrier of block `rank`.
__device__ inline void barrier_arrive_at(uint64_t& barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(&barrier)),
      "r"(rank)
      : "memory");
}
__device__ inline void copy_rows(uint32_t shared, const void* map, int depth, int row, uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared),
      "l"(map), "r"(depth), "r"(row), "r"(shared_address(&barrier))
      : "memory");
}
// To the same place of every block of the cluster.
__device__ inline void copy_rows_to_all(uint32_t shared, const void* map, int depth, int row, uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared),
      "l"(map), "r"(depth), "r"(row), "r"(shared_address(&barrier)), "h"(static_cast<uint16_t>((1 << kCluster) - 1))
      : "memory");
}

// Tile `index` of all: kBand tiles of outputs by all rows, then the next band.
struct Place {
  int row, out;  // tiles: pairs of rows
  __device__ Place(const Job& job, int index) {
    const int band = index / (job.row_tiles * kBand), left = index - band * job.row_tiles * kBand;
    const int width = min(kBand, job.out_tiles - band * kBand);
    row = left / width;
    out = band * kBand + left % width;
  }
};

__device__ inline void produce(const Maps& maps, const Job& job, Ring& ring, uint32_t stages, uint32_t rank) {
  Cursor at;
  const int tiles = job.row_tiles * job.out_tiles;
  for (int tile = blockIdx.x / kCluster; tile < tiles; tile += gridDim.x / kCluster) {
    const Place place(job, tile);
    const int row = (place.row * kCluster + rank) * kRows, out = place.out * job.results + rank * job.second;
    for (int k = 0; k < job.steps; ++k, at.next()) {
      barrier_wait(ring.empty[at.stage], at.parity ^ 1);
      uint64_t& full = ring.full[at.stage];
      const uint32_t to = stages + at.stage * kStageBytes;
      barrier_arrive_expecting(full, kStageBytes);
      copy_rows(to, &maps.x, k * job.step, row, full);
      copy_rows_to_all(to + kXBytes + rank * (kWBytes / kCluster), &maps.w, k * job.step, out, full);
    }
  }
}

__device__ inline uint32_t half_pair(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// The four lanes of a quad hold two columns each of four blocks of eight; afterwards lane q holds block q.
__device__ inline uint4 quad_blocks(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const int q = threadIdx.x & 3;
  const auto exchange = [](uint32_t& low, uint32_t& high, bool upper, int distance) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? low : high, distance);
    (upper ? low : high) = other;
  };
  exchange(a, b, (q & 1) != 0, 1);
  exchange(c, d, (q & 1) != 0, 1);
  exchange(a, c, (q & 2) != 0, 2);
  exchange(b, d, (q & 2) != 0, 2);
  return make_uint4(a, b, c, d);
}

// What a thread holds of a tile: d[4 i + 2 h + e] is row lane / 4 + 8 h of its warp's sixteen, column 8 i + 2 (lane %
// 4) + e.
struct Share {
  int row[2];  // of the result
  bool valid[2];
  int column;  // 2 (lane % 4)
  float x_scale[2];
};

// x w^T + bias of the tile, rounded: v[2 i + h] holds the two columns of block i in row h.
template <typename T>
__device__ inline void finish_sums(const Share& s, const Columns& columns, const float (&d)[128], uint32_t (&v)[64]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const float2 bias = *reinterpret_cast<const float2*>(columns.bias + 8 * i + s.column);
    float2 scale;
    if constexpr (sizeof(T) == 1) scale = *reinterpret_cast<const float2*>(columns.w_scale + 8 * i + s.column);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float a = d[4 * i + 2 * h], b = d[4 * i + 2 * h + 1];
      if constexpr (sizeof(T) == 1) {
        v[2 * i + h] = half_pair(fmaf(a, s.x_scale[h] * scale.x, bias.x), fmaf(b, s.x_scale[h] * scale.y, bias.y));
      } else {
        v[2 * i + h] = half_pair(a + bias.x, b + bias.y);
      }
    }
  }
}

// Blocks [0, kBlocks) of eight columns from `first` on.
template <int kBlocks>
__device__ inline void store_halves(const Job& job, const Share& s, const uint32_t (&v)[64], int first) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    __half* const to = job.y + s.row[h] * job.y_pitch + first + 4 * s.column;
#pragma unroll
    for (int i = 0; i < kBlocks; i += 4) {
      const uint4 eight = quad_blocks(v[2 * i + h], v[2 * i + 2 + h], v[2 * i + 4 + h], v[2 * i + 6 + h]);
      if (s.valid[h]) *reinterpret_cast<uint4*>(to + 8 * i) = eight;
    }
  }
}

__device__ inline float silu(float v) { return __fdividef(v, 1.0f + exp2_fast(-1.4426950408889634f * v)); }

// round(up * round(silu(gate))), saturating; the product of two f16 is exact in f32, so one rounding is all.
__device__ inline uint32_t gated(uint32_t gate, uint32_t up) {
  const float2 g = __half22float2(*reinterpret_cast<const __half2*>(&gate));
  const __half2 s = __floats2half2_rn(silu(g.x), silu(g.y)), most = __float2half2_rn(65504.0f);
  const __half2 v = __hmul2(*reinterpret_cast<const __half2*>(&up), s);
  const __half2 kept = __hmax2_nan(__hmin2_nan(v, most), __hneg2(most));
  return *reinterpret_cast<const uint32_t*>(&kept);
}

// Heads of 64 columns: the sum over a row lies in a quad, and the partner of a column three blocks on in the same
// thread.
__device__ inline void norm_heads(const Job& job, const Share& s, uint32_t (&v)[64]) {
  constexpr int kHead = kFusedHead / 8, kTurn = kFusedPairs / 8;  // in blocks
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t table = s.valid[h] ? s.row[h] * job.table_pitch : 0;
    float2 c[kTurn], t[kTurn];
#pragma unroll
    for (int i = 0; i < kTurn; ++i) {
      c[i] = __ldg(reinterpret_cast<const float2*>(job.cos + table + 8 * i + s.column));
      t[i] = __ldg(reinterpret_cast<const float2*>(job.sin + table + 8 * i + s.column));
    }
#pragma unroll
    for (int head = 0; head < 32 / kHead; ++head) {
      float2 x[kHead];
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kHead; ++i) {
        x[i] = __half22float2(*reinterpret_cast<const __half2*>(&v[2 * (head * kHead + i) + h]));
        sum = fmaf(x[i].x, x[i].x, fmaf(x[i].y, x[i].y, sum));
      }
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      const float factor = rsqrtf(sum / static_cast<float>(kFusedHead) + job.eps);
#pragma unroll
      for (int i = 0; i < kHead; ++i) x[i] = __half22float2(__floats2half2_rn(x[i].x * factor, x[i].y * factor));
#pragma unroll
      for (int i = 0; i < kTurn; ++i) {
        const float2 p = x[i], q = x[i + kTurn];
        x[i] = make_float2(p.x * c[i].x - q.x * t[i].x, p.y * c[i].y - q.y * t[i].y);
        x[i + kTurn] = make_float2(q.x * c[i].x + p.x * t[i].x, q.y * c[i].y + p.y * t[i].y);
      }
#pragma unroll
      for (int i = 0; i < kHead; ++i) v[2 * (head * kHead + i) + h] = half_pair(x[i].x, x[i].y);
    }
  }
}

__device__ inline void add_to_stream(const Job& job, const Share& s, const Columns& columns, const uint32_t (&v)[64],
                                     int first) {
  constexpr int kAtOnce = 16;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!s.valid[h]) continue;
    float* const stream = job.stream + s.row[h] * job.stream_pitch + first + s.column;
#pragma unroll
    for (int i0 = 0; i0 < 32; i0 += kAtOnce) {
      float2 x[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) x[i] = *reinterpret_cast<const float2*>(stream + 8 * (i0 + i));
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float2 scale = *reinterpret_cast<const float2*>(columns.scale + 8 * (i0 + i) + s.column);
        const float2 y = __half22float2(*reinterpret_cast<const __half2*>(&v[2 * (i0 + i) + h]));
        x[i].x = __fadd_rn(x[i].x, __fmul_rn(scale.x, y.x));
        x[i].y = __fadd_rn(x[i].y, __fmul_rn(scale.y, y.y));
        *reinterpret_cast<float2*>(stream + 8 * (i0 + i)) = x[i];
      }
    }
  }
}

__device__ inline int first_row(const Place& place, uint32_t rank) {
  const int group = threadIdx.x / kWarpGroup;
  return (place.row * kCluster + static_cast<int>(rank)) * kRows + group * 64;
}

template <typename T, FusedTail kTail>
__device__ inline void finish(const Job& job, const Place& place, const Columns& columns, const float (&d)[128],
                              uint32_t rank) {
  const int first = place.out * job.results;
  Share s;
  s.column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    s.row[h] = first_row(place, rank) + tile_row(h);
    s.valid[h] = s.row[h] < job.rows;
    if constexpr (sizeof(T) == 1) s.x_scale[h] = s.valid[h] ? __ldg(job.x_scale + s.row[h]) : 0;
  }
  uint32_t v[64];
  finish_sums<T>(s, columns, d, v);
  if constexpr (kTail == FusedTail::swiglu) {
#pragma unroll
    for (int i = 0; i < 32; ++i) v[i] = gated(v[i], v[i + 32]);
    store_halves<16>(job, s, v, first);
  } else if constexpr (kTail == FusedTail::scaled_add) {
    add_to_stream(job, s, columns, v, first);
  } else {
    if (kTail == FusedTail::head_norm && first < job.turned) norm_heads(job, s, v);
    store_halves<32>(job, s, v, first);
  }
}

// Two columns' numbers of a thread of a group, on their way to shared memory.
template <typename T, FusedTail kTail>
struct ColumnPair {
  float2 bias, w_scale, scale;
  __device__ void load(const Job& job, const Place& place) {
    const int at = threadIdx.x % kWarpGroup * 2, first = place.out * job.results;
    const int column = at < kOuts / 2 ? first + at : first + job.second + at - kOuts / 2;
    bias = __ldg(reinterpret_cast<const float2*>(job.bias + column));
    if constexpr (sizeof(T) == 1) w_scale = __ldg(reinterpret_cast<const float2*>(job.w_scale + column));
    if constexpr (kTail == FusedTail::scaled_add) scale = __ldg(reinterpret_cast<const float2*>(job.scale + column));
  }
  __device__ void store(Columns& columns) const {
    const int at = threadIdx.x % kWarpGroup * 2;
    *reinterpret_cast<float2*>(columns.bias + at) = bias;
    if constexpr (sizeof(T) == 1) *reinterpret_cast<float2*>(columns.w_scale + at) = w_scale;
    if constexpr (kTail == FusedTail::scaled_add) *reinterpret_cast<float2*>(columns.scale + at) = scale;
  }
};

// The group's part of the stream into the L2 cache, while it multiplies.
__device__ inline void expect_stream(const Job& job, const Place& place, uint32_t rank) {
  constexpr int kLine = 32, kLines = kOuts / kLine;  // floats, and lines of a row
  for (int i = threadIdx.x % kWarpGroup; i < 64 * kLines; i += kWarpGroup) {
    const int row = first_row(place, rank) + i / kLines;
    if (row >= job.rows) continue;
    const float* at = job.stream + row * job.stream_pitch + place.out * job.results + i % kLines * kLine;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
  }
}

__device__ inline void group_meet(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kWarpGroup) : "memory");
}

template <typename T, FusedTail kTail>
__device__ inline void consume(const Job& job, Ring& ring, Columns (&columns)[2], uint32_t stages, uint32_t rank) {
  const int group = threadIdx.x / kWarpGroup, lane = threadIdx.x % 32;
  const auto release = [&](int stage) {
    if (lane < kCluster) barrier_arrive_at(ring.empty[stage], lane);
  };
  Cursor at;
  const int tiles = job.row_tiles * job.out_tiles;
  int turn = 0;
  for (int tile = blockIdx.x / kCluster; tile < tiles; tile += gridDim.x / kCluster, turn ^= 1) {
    const Place place(job, tile);
    ColumnPair<T, kTail> pair;
    pair.load(job, place);
    if constexpr (kTail == FusedTail::scaled_add) expect_stream(job, place, rank);
    float d[128];
    int before = 0;
    for (int k = 0; k < job.steps; ++k, at.next()) {
      barrier_wait(ring.full[at.stage], at.parity);
      const uint32_t from = stages + at.stage * kStageBytes;
      const uint64_t a = tile_descriptor(from + group * (kXBytes / kGroups), 16);
      const uint64_t b = tile_descriptor(from + kXBytes, 16);
      products_begin();
#pragma unroll
      for (int kk = 0; kk < kDepthBytes / 32; ++kk) product_256<T>(d, a + 2 * kk, b + 2 * kk, k | kk);
      products_end();
      if (k == 0) pair.store(columns[turn]);
      products_wait_but_last();
      if (k > 0) release(before);
      before = at.stage;
    }
    products_wait();
    settle(d);
    release(before);
    group_meet(group);  // the columns are there
    finish<T, kTail>(job, place, columns[turn], d, rank);
  }
}

#endif

// Only targets that run the kernel know clusters.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define H3_CLUSTER __cluster_dims__(kCluster, 1, 1)
#else
#define H3_CLUSTER
#endif

template <typename T, FusedTail kTail>
__global__ void H3_CLUSTER __launch_bounds__(kThreads, 1)
    fused_linear_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Job job) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char raw[];
  __shared__ Ring ring;
  __shared__ __align__(16) Columns columns[kGroups][2];
  const uint32_t stages = (shared_address(raw) + 1023) / 1024 * 1024, rank = cluster_rank();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(ring.full[i], 1);
      barrier_init(ring.empty[i], kCluster * kGroups * kWarpGroup / 32);
    }
    barrier_init_done();
  }
  cluster_meet();
  if (threadIdx.x / kWarpGroup == kGroups) {
    give_registers<kCopyRegisters>();
    if (threadIdx.x % kWarpGroup == 0) produce(maps, job, ring, stages, rank);
  } else {
    take_registers<kComputeRegisters>();
    consume<T, kTail>(job, ring, columns[threadIdx.x / kWarpGroup], stages, rank);
  }
  __syncwarp();
  cluster_meet();  // the other block still writes here and arrives at these barriers
#endif
}
#undef H3_CLUSTER

// [rows, depth] as boxes of 128 rows by 128 bytes.
CUtensorMap boxes_of(const void* base, DType type, int64_t rows, int64_t depth, int64_t pitch) {
  const int64_t size = size_of(type);
  return tensor_map({.base = base,
                     .type = type == DType::u8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                     .sizes = {depth, rows},
                     .strides = {pitch * size},
                     .box = {static_cast<int>(kDepthBytes / size), 128},
                     .rank = 2},
                    "a fused matmul");
}

template <typename T, FusedTail kTail>
void launch_fused(cudaStream_t stream, const Maps& maps, const Job& job, int clusters) {
  const LaunchShape shape{dim3(static_cast<unsigned>(clusters * kCluster)), dim3(kThreads), kSharedBytes};
  launch(stream, "fused_linear", fused_linear_kernel<T, kTail>, shape, maps, job);
}

template <typename T>
void launch_tail(cudaStream_t stream, FusedTail tail, const Maps& maps, const Job& job, int clusters) {
  switch (tail) {
    case FusedTail::swiglu: return launch_fused<T, FusedTail::swiglu>(stream, maps, job, clusters);
    case FusedTail::scaled_add: return launch_fused<T, FusedTail::scaled_add>(stream, maps, job, clusters);
    case FusedTail::head_norm: return launch_fused<T, FusedTail::head_norm>(stream, maps, job, clusters);
    case FusedTail::plain: return launch_fused<T, FusedTail::plain>(stream, maps, job, clusters);
  }
}

}  // namespace

bool fused_linear_takes(const FusedLinear& j) {
  const int64_t size = size_of(j.operand), step = kDepthBytes / size;
  const auto aligned = [](const void* p, int64_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; };
  if (j.operand != DType::f16 && j.operand != DType::u8) return false;
  if (j.rows < 1 || j.rows > INT32_MAX / 2 || j.depth % step != 0 || j.x_pitch * size % 16 != 0) return false;
  if (!aligned(j.x, 16) || !aligned(j.w, 16) || j.bias == nullptr || !aligned(j.bias, 8)) return false;
  const int64_t results = j.tail == FusedTail::swiglu ? kOuts / 2 : kOuts;
  const int64_t features = j.tail == FusedTail::swiglu ? j.outs / 2 : j.outs;
  if (features % results != 0 || j.outs > INT32_MAX / 2) return false;
  if (j.tail == FusedTail::scaled_add) {
    if (!aligned(j.stream, 8) || j.stream_pitch % 2 != 0 || !aligned(j.scale, 8)) return false;
  } else if (!aligned(j.y, 16) || j.y_pitch % 8 != 0) {
    return false;
  }
  if (j.tail == FusedTail::head_norm) {
    if (j.turned % kOuts != 0 || !aligned(j.cos, 8) || !aligned(j.sin, 8) || j.table_pitch % 2 != 0) return false;
  }
  return has_tensor_maps();
}

void fused_linear(cudaStream_t stream, const FusedLinear& j) {
  const bool swiglu = j.tail == FusedTail::swiglu;
  Job job{};
  job.rows = static_cast<int>(j.rows);
  job.step = static_cast<int>(kDepthBytes / size_of(j.operand));
  job.steps = static_cast<int>(j.depth / job.step);
  job.results = swiglu ? kOuts / 2 : kOuts;
  job.second = static_cast<int>(swiglu ? j.outs / 2 : kOuts / 2);
  job.row_tiles = static_cast<int>(ceil_div(j.rows, kCluster * kRows));
  job.out_tiles = static_cast<int>((swiglu ? j.outs / 2 : j.outs) / job.results);
  job.bias = j.bias, job.x_scale = j.x_scale, job.w_scale = j.w_scale;
  job.y = static_cast<__half*>(j.y), job.y_pitch = j.y_pitch;
  job.stream = j.stream, job.stream_pitch = j.stream_pitch, job.scale = j.scale;
  job.cos = j.cos, job.sin = j.sin, job.table_pitch = j.table_pitch;
  job.turned = static_cast<int>(j.turned), job.eps = j.eps;
  const Maps maps{.x = boxes_of(j.x, j.operand, j.rows, j.depth, j.x_pitch),
                  .w = boxes_of(j.w, j.operand, j.outs, j.depth, j.depth)};
  const int clusters = std::min(processors_of_this_card() / kCluster, job.row_tiles * job.out_tiles);
  if (j.operand == DType::u8) return launch_tail<uint8_t>(stream, j.tail, maps, job, clusters);
  launch_tail<__half>(stream, j.tail, maps, job, clusters);
}

}  // namespace h3::cuda
