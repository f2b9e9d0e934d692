// Block-sparse attention (ops.h: sparse_attention). Summaries of the key blocks and the choice of exact blocks
// (sparse_prepare.cu), then one pass over summaries and exact blocks with an online softmax: tensor cores for 16-bit
// heads of 128 (sparse_hopper.cu where it applies, else mma.sync), plain FMAs for the rest.
#include <algorithm>

#include "backends/cuda/kernels/mma.cuh"
#include "backends/cuda/kernels/sparse.cuh"

namespace h3::cuda {
namespace {

constexpr int kBlock = kSparseRows;
constexpr int kMaxDim = kSparseMaxDim;
constexpr float kLog2e = 1.4426950408889634f;

// ---- tensor cores: heads of 128 ----
// Four warps share 64 queries: warp % 2 takes 32 of them, warp / 2 half of the keys of every tile, so that a warp reads
// each key and value for 32 rows. The two halves of the keys keep a softmax of their own and meet at the end.
constexpr int kDim = kSparseDim, kPad = kDim + 8, kTile = kBlock * kPad;
constexpr int kMergePad = kDim + 4;

struct State {
  float o[2][kDim / 8][4];
  float top[2][2], sum[2][2];
};

template <typename T>
__device__ inline void tile_scores(const T* qs, const T* ks, int rows0, int keys0, float (&s)[2][4][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < 4; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
  }
#pragma unroll
  for (int kk = 0; kk < kDim / 16; ++kk) {
    uint32_t q[2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      ldmatrix4(q[m], qs + (rows0 + m * 16 + (lane & 15)) * kPad + kk * 16 + (lane >> 4) * 8);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      uint32_t b[4];
      const int row = keys0 + n * 16 + (lane & 7) + (lane >> 4) * 8, column = kk * 16 + ((lane >> 3) & 1) * 8;
      ldmatrix4(b, ks + row * kPad + column);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        mma_16816<T>(s[m][2 * n], q[m], b[0], b[1]);
        mma_16816<T>(s[m][2 * n + 1], q[m], b[2], b[3]);
      }
    }
  }
}

// Turns scores into weights and rescales the state. weight_of(key of the tile): how much a weight counts in the sum;
// negative = the key takes no part.
template <typename Weight>
__device__ inline void tile_softmax(State& f, float (&s)[2][4][4], int keys0, float scale_log2,
                                    const Weight& weight_of) {
  const int lane = threadIdx.x % 32;
  float weight[4][2];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      weight[n][e] = weight_of(keys0 + n * 8 + (lane & 3) * 2 + e);
      if (weight[n][e] >= 0) continue;
#pragma unroll
      for (int m = 0; m < 2; ++m) s[m][n][e] = s[m][n][2 + e] = -INFINITY;
    }
  }
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = f.top[m][half];
#pragma unroll
      for (int n = 0; n < 4; ++n) top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float base = top == -INFINITY ? 0.0f : top * scale_log2;
      const float keep = exp2f(f.top[m][half] * scale_log2 - base);
      f.top[m][half] = top;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& v = s[m][n][2 * half + e];
          v = exp2f(fmaf(v, scale_log2, -base));
          sum += weight[n][e] >= 0 ? v * weight[n][e] : 0.0f;
        }
      }
      f.sum[m][half] = f.sum[m][half] * keep + sum;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) f.o[m][n][2 * half] *= keep, f.o[m][n][2 * half + 1] *= keep;
    }
  }
}

template <typename T>
__device__ inline void tile_values(State& f, const float (&s)[2][4][4], const T* vs, int keys0) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int kk = 0; kk < 2; ++kk) {
    uint32_t p[2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      p[m][0] = pack2<T>(s[m][2 * kk][0], s[m][2 * kk][1]);
      p[m][1] = pack2<T>(s[m][2 * kk][2], s[m][2 * kk][3]);
      p[m][2] = pack2<T>(s[m][2 * kk + 1][0], s[m][2 * kk + 1][1]);
      p[m][3] = pack2<T>(s[m][2 * kk + 1][2], s[m][2 * kk + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      uint32_t b[4];
      ldmatrix4_trans(b, vs + (keys0 + kk * 16 + (lane & 15)) * kPad + n * 16 + (lane >> 4) * 8);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        mma_16816<T>(f.o[m][2 * n], p[m], b[0], b[1]);
        mma_16816<T>(f.o[m][2 * n + 1], p[m], b[2], b[3]);
      }
    }
  }
}

// Adds the state of the warps of the second half of the keys to that of the first, through shared memory.
__device__ inline void merge_halves(State& f, float* shared, int rows0, bool second, float scale_log2) {
  const int lane = threadIdx.x % 32;
  float* states = shared + kBlock * kMergePad;  // [64][2]: top, sum
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      f.sum[m][half] += __shfl_xor_sync(0xffffffffu, f.sum[m][half], 1);
      f.sum[m][half] += __shfl_xor_sync(0xffffffffu, f.sum[m][half], 2);
      const int row = rows0 + m * 16 + (lane >> 2) + half * 8;
      if (!second) continue;
      states[2 * row] = f.top[m][half];
      states[2 * row + 1] = f.sum[m][half];
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          shared[row * kMergePad + n * 8 + (lane & 3) * 2 + e] = f.o[m][n][2 * half + e];
        }
      }
    }
  }
  __syncthreads();
  if (second) return;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = rows0 + m * 16 + (lane >> 2) + half * 8;
      const float other = states[2 * row], top = fmaxf(f.top[m][half], other);
      const float base = top == -INFINITY ? 0.0f : top * scale_log2;
      const float mine = exp2f(f.top[m][half] * scale_log2 - base), theirs = exp2f(other * scale_log2 - base);
      f.sum[m][half] = f.sum[m][half] * mine + states[2 * row + 1] * theirs;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& o = f.o[m][n][2 * half + e];
          o = o * mine + shared[row * kMergePad + n * 8 + (lane & 3) * 2 + e] * theirs;
        }
      }
    }
  }
}

template <typename T, bool kVec>
__global__ void __launch_bounds__(kTileThreads, 2) sparse_mma_kernel(Sparse a) {
  extern __shared__ char raw[];
  T* tiles = reinterpret_cast<T*>(raw);  // Q, K0, K1, V0, V1
  T *qs = tiles, *ks = tiles + kTile, *vs = tiles + 3 * kTile;
  const int64_t block = blockIdx.x;
  const int head = blockIdx.y, warp = threadIdx.x / 32;
  const int rows0 = warp % 2 * 32, keys0 = warp / 2 * 32;
  const T* q = reinterpret_cast<const T*>(a.q) + head * a.q_head;
  const T* k = reinterpret_cast<const T*>(a.k) + head * a.k_head;
  const T* v = reinterpret_cast<const T*>(a.v) + head * a.v_head;
  const T* kc = reinterpret_cast<const T*>(a.kc) + head * a.blocks * kDim;
  const T* vc = reinterpret_cast<const T*>(a.vc) + head * a.blocks * kDim;
  const int64_t choice = sparse_choice(a, head, block);
  const uint16_t* list = a.list + choice * a.blocks;
  const uint32_t* chosen = a.chosen + choice * a.words;
  const int summaries = static_cast<int>(sparse_summary_tiles(a)), steps = summaries + a.count[choice];
  const auto load = [&](int step, int slot) {
    const bool summary = step < summaries;
    const int64_t first = (summary ? step : static_cast<int64_t>(list[step - summaries])) * kBlock;
    const int64_t limit = summary ? a.blocks : a.rows;
    load_tile<T, kDim, kVec>(ks + slot * kTile, summary ? kc : k, summary ? int64_t{kDim} : a.k_row, first, limit,
                             kDim);
    load_tile<T, kDim, kVec>(vs + slot * kTile, summary ? vc : v, summary ? int64_t{kDim} : a.v_row, first, limit,
                             kDim);
  };
  load_tile<T, kDim, kVec>(qs, q, a.q_row, block * kBlock, a.rows, kDim);
  load(0, 0);
  copies_wait<0>();
  __syncthreads();
  State f;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) f.o[m][n][0] = f.o[m][n][1] = f.o[m][n][2] = f.o[m][n][3] = 0;
    f.top[m][0] = f.top[m][1] = -INFINITY;
    f.sum[m][0] = f.sum[m][1] = 0;
  }
  for (int step = 0; step < steps; ++step) {
    const int now = step & 1;
    if (step + 1 < steps) load(step + 1, now ^ 1);
    float s[2][4][4];
    tile_scores<T>(qs, ks + now * kTile, rows0, keys0, s);
    if (step < summaries) {
      tile_softmax(f, s, keys0, a.scale_log2, [&](int key) {
        const int64_t n = int64_t{step} * kBlock + key;
        if (n >= a.blocks || (chosen[n / 32] >> (n % 32) & 1) != 0) return -1.0f;
        return static_cast<float>(sparse_length(a, n));
      });
    } else {
      const int64_t first = static_cast<int64_t>(list[step - summaries]) * kBlock;
      tile_softmax(f, s, keys0, a.scale_log2, [&](int key) { return first + key < a.rows ? 1.0f : -1.0f; });
    }
    tile_values<T>(f, s, vs + now * kTile, keys0);
    copies_wait<0>();
    __syncthreads();
  }
  merge_halves(f, reinterpret_cast<float*>(raw), rows0, warp / 2 == 1, a.scale_log2);
  if (warp / 2 == 1) return;
  T* out = reinterpret_cast<T*>(a.out) + head * a.o_head;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = block * kBlock + rows0 + m * 16 + (lane >> 2) + half * 8;
      if (row >= a.rows) continue;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int c = n * 8 + (lane & 3) * 2 + e;
          out[row * a.o_row + c] = from_float<T>(f.o[m][n][2 * half + e] / f.sum[m][half]);
        }
      }
    }
  }
}

// ---- everything else: one warp per query, 32 keys at a time ----
template <typename T>
__global__ void __launch_bounds__(128) sparse_fma_kernel(Sparse a) {
  __shared__ float queries[4][kMaxDim];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y;
  const int64_t row = blockIdx.x * int64_t{4} + warp;
  if (row >= a.rows) return;
  float* query = queries[warp];
  for (int c = lane; c < a.d; c += 32) {
    query[c] = to_float(reinterpret_cast<const T*>(a.q)[row * a.q_row + head * a.q_head + c]);
  }
  __syncwarp();
  const int64_t choice = sparse_choice(a, head, row / kBlock);
  const uint32_t* chosen = a.chosen + choice * a.words;
  constexpr int kParts = kMaxDim / 32;
  float acc[kParts] = {}, top = -INFINITY, total = 0;
  const auto take = [&](const T* k, int64_t k_row, const T* v, int64_t v_row, int64_t first, int64_t limit,
                        bool summary) {
    const int64_t key = first + lane;
    const bool inside = key < limit && (!summary || (chosen[key / 32] >> (key % 32) & 1) == 0);
    float s = -INFINITY;
    if (inside) {
      s = 0;
      for (int c = 0; c < a.d; ++c) s = fmaf(query[c], to_float(k[key * k_row + c]), s);
      s *= a.scale_log2;
    }
    float m = s;
    for (int offset = 16; offset > 0; offset >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, offset));
    m = fmaxf(m, top);
    const float base = m == -INFINITY ? 0.0f : m, keep = exp2f(top - base), p = isnan(s) ? s : exp2f(s - base);
    float sum = inside ? p * (summary ? static_cast<float>(sparse_length(a, key)) : 1.0f) : 0.0f;
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    total = total * keep + sum;
    top = m;
    const float rounded = inside ? round_to<T>(p) : 0.0f;
    for (int part = 0; part < kParts && part * 32 < a.d; ++part) acc[part] *= keep;
    for (int j = 0; j < 32 && first + j < limit; ++j) {
      const float weight = __shfl_sync(0xffffffffu, rounded, j);
      if (weight == 0.0f) continue;
      for (int part = 0; part < kParts; ++part) {
        const int c = part * 32 + lane;
        if (c < a.d) acc[part] = fmaf(weight, to_float(v[(first + j) * v_row + c]), acc[part]);
      }
    }
  };
  const T* kc = reinterpret_cast<const T*>(a.kc) + head * a.blocks * a.d;
  const T* vc = reinterpret_cast<const T*>(a.vc) + head * a.blocks * a.d;
  for (int64_t first = 0; first < a.blocks; first += 32) take(kc, a.d, vc, a.d, first, a.blocks, true);
  const T* k = reinterpret_cast<const T*>(a.k) + head * a.k_head;
  const T* v = reinterpret_cast<const T*>(a.v) + head * a.v_head;
  const uint16_t* list = a.list + choice * a.blocks;
  for (int i = 0; i < a.count[choice]; ++i) {
    const int64_t first = static_cast<int64_t>(list[i]) * kBlock, limit = min(a.rows, first + kBlock);
    take(k, a.k_row, v, a.v_row, first, limit, false);
    if (first + 32 < limit) take(k, a.k_row, v, a.v_row, first + 32, limit, false);
  }
  T* out = reinterpret_cast<T*>(a.out) + row * a.o_row + head * a.o_head;
  for (int part = 0; part < kParts; ++part) {
    const int c = part * 32 + lane;
    if (c < a.d) out[c] = from_float<T>(acc[part] / total);
  }
}

bool vector_loads(const Sparse& a) {
  const int64_t strides = a.q_row | a.q_head | a.k_row | a.k_head | a.v_row | a.v_head;
  const uintptr_t addresses =
      reinterpret_cast<uintptr_t>(a.q) | reinterpret_cast<uintptr_t>(a.k) | reinterpret_cast<uintptr_t>(a.v);
  return strides % 8 == 0 && addresses % 16 == 0;
}

template <typename T>
void launch_sparse(cudaStream_t stream, const Sparse& a) {
  const unsigned blocks = static_cast<unsigned>(a.blocks), heads = static_cast<unsigned>(a.heads);
  if constexpr (!std::is_same_v<T, float>) {
    if (a.d == kDim) {
      const LaunchShape shape{dim3(blocks, heads), dim3(kTileThreads), size_t{5} * kTile * sizeof(T)};
      if (vector_loads(a))
        launch(stream, "sparse_attention", sparse_mma_kernel<T, true>, shape, a);
      else
        launch(stream, "sparse_attention", sparse_mma_kernel<T, false>, shape, a);
      return;
    }
  }
  const LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(a.rows, 4)), heads), dim3(128), 0};
  launch(stream, "sparse_attention", sparse_fma_kernel<T>, shape, a);
}

// Pieces of one scratch allocation, each at a multiple of 256 bytes.
struct Pieces {
  char* base;
  int64_t used = 0;
  template <typename P>
  void take(P*& out, int64_t count, int64_t size = sizeof(P)) {
    out = base == nullptr ? nullptr : reinterpret_cast<P*>(base + used);
    used += ceil_div(count * size, 256) * 256;
  }
};

int64_t place(Sparse& a, bool hopper, char* base, int64_t element) {
  Pieces pieces{base};
  const int64_t pairs = a.heads * a.blocks, chosen = a.choices * a.blocks, streams = a.choices * sparse_streams(a);
  pieces.take(a.kc, pairs * a.d, element);
  pieces.take(a.vc, pairs * a.d, element);
  if (a.mask == nullptr) {
    pieces.take(a.centres, pairs * a.d);
    pieces.take(a.statistics, int64_t{2} * a.heads * a.d);
  }
  pieces.take(a.chosen, chosen * a.words);
  if (hopper) {
    pieces.take(a.streams, streams * sparse_stream_room(a));
    pieces.take(a.stream_tiles, streams);
  } else {
    pieces.take(a.list, chosen * a.blocks);
    pieces.take(a.count, chosen);
  }
  return pieces.used;
}

}  // namespace

int64_t CudaOps::sparse_attention_bytes(int64_t rows, int64_t heads, int64_t head_dim, DType type) const {
  Sparse a{};
  a.heads = a.choices = static_cast<int>(heads);
  a.d = static_cast<int>(head_dim);
  a.blocks = ceil_div(rows, kBlock);
  a.words = ceil_div(a.blocks, 32);
  return std::max(place(a, false, nullptr, size_of(type)), place(a, true, nullptr, size_of(type)));
}

void CudaOps::sparse_attention(const SparseAttentionArgs& in) {
  const View &q = in.q, &k = in.k, &v = in.v, &out = in.out;
  H3_ASSERT(q.rank == 3 && k.rank == 3 && v.rank == 3 && out.rank == 3 && q.dim == k.dim && q.dim == v.dim);
  H3_ASSERT(q.stride[2] == 1 && k.stride[2] == 1 && v.stride[2] == 1 && out.stride[2] == 1 && q.dim[2] <= kMaxDim);
  if (q.elements() == 0) return;
  Sparse a{};
  a.q = reinterpret_cast<const char*>(q.data);
  a.k = reinterpret_cast<const char*>(k.data);
  a.v = reinterpret_cast<const char*>(v.data);
  a.out = reinterpret_cast<char*>(out.data);
  a.q_row = q.stride[0], a.q_head = q.stride[1], a.k_row = k.stride[0], a.k_head = k.stride[1];
  a.v_row = v.stride[0], a.v_head = v.stride[1], a.o_row = out.stride[0], a.o_head = out.stride[1];
  a.rows = q.dim[0];
  a.heads = a.choices = static_cast<int>(q.dim[1]);
  a.d = static_cast<int>(q.dim[2]);
  a.blocks = ceil_div(a.rows, kBlock);
  a.words = ceil_div(a.blocks, 32);
  H3_ASSERT(a.blocks <= 65535);
  a.scale_log2 = in.scale * kLog2e;
  a.tau = in.tau;
  a.exact_blocks = ceil_div(in.exact_keys, kBlock);
  if (!in.mask.empty()) {
    H3_ASSERT(in.mask.dim[0] == a.blocks && in.mask.dim[1] == a.blocks);
    a.choices = 1;
    a.mask = as<const uint8_t>(in.mask);
    a.mask_row = in.mask.stride[0];
    a.mask_column = in.mask.stride[1];
  }
  if (!in.exact_blocks.empty()) a.total = as<int32_t>(in.exact_blocks);
  const bool hopper = sparse_hopper_takes(a, q.type);
  const int64_t element = size_of(q.type), bytes = place(a, hopper, nullptr, element);
  place(a, hopper, static_cast<char*>(scratch(kAttentionScratch, bytes)), element);
  sparse_prepare(stream(), a, q.type);
  if (hopper) return sparse_hopper(stream(), a);
  H3_FLOAT_TYPE(q.type, launch_sparse<T>(stream(), a);)
}

}  // namespace h3::cuda
