// The generic attention kernels: tensor cores (mma.sync) for bf16 and f16 heads up to 128, plain FMAs for f32 and wider
// heads. Online softmax, O(S) memory. cuDNN is preferred where it takes the shape; these take every head size up to
// 256, GQA, causal masks and any row strides.
#include "backends/cuda/kernels/mma.cuh"

namespace h3::cuda {
namespace {

constexpr int kQueries = 64;  // per block: 4 warps of 16
constexpr int kKeys = 64;     // per step
constexpr int kThreads = kTileThreads;

struct Args {
  const char *q, *k, *v;
  char* out;
  int64_t q_row, q_head, q_batch, k_row, k_head, k_batch, v_row, v_head, v_batch, o_row, o_head, o_batch;  // elements
  int64_t queries, keys;
  int heads, group, d;
  float scale;
  bool causal;
};

template <typename T, int kDim>
struct Fragments {
  uint32_t q[kDim / 16][4];
  float o[kDim / 8][4];
  float top[2], sum[2];
};

// S = Q K^T for one tile: s[n][..] covers keys 8 n .. 8 n + 7.
template <typename T, int kDim>
__device__ inline void scores(const Fragments<T, kDim>& f, const T* k, float (&s)[kKeys / 8][4]) {
  constexpr int kPad = kDim + 8;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
  for (int kk = 0; kk < kDim / 16; ++kk) {
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      uint32_t b[4];
      const int row = n * 16 + (lane & 7) + (lane >> 4) * 8, column = kk * 16 + ((lane >> 3) & 1) * 8;
      ldmatrix4(b, k + row * kPad + column);
      mma_16816<T>(s[2 * n], f.q[kk], b[0], b[1]);
      mma_16816<T>(s[2 * n + 1], f.q[kk], b[2], b[3]);
    }
  }
}

// Masks, rescales the running state, turns s into probabilities.
template <typename T, int kDim>
__device__ inline void softmax_step(Fragments<T, kDim>& f, float (&s)[kKeys / 8][4], const Args& a, int64_t row0,
                                    int64_t key0, float scale_log2) {
  const int lane = threadIdx.x % 32;
  const bool edge = key0 + kKeys > a.keys || (a.causal && key0 + kKeys > row0);
  if (edge) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int64_t key = key0 + n * 8 + (lane & 3) * 2 + (e & 1), row = row0 + (lane >> 2) + (e >> 1) * 8;
        if (key >= a.keys || (a.causal && key > row)) s[n][e] = -INFINITY;
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = f.top[half];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float base = top == -INFINITY ? 0.0f : top * scale_log2;
    const float keep = exp2f(f.top[half] * scale_log2 - base);
    f.top[half] = top;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& v = s[n][2 * half + e];
        v = exp2f(fmaf(v, scale_log2, -base));
        sum += v;
      }
    }
    f.sum[half] = f.sum[half] * keep + sum;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) f.o[n][2 * half] *= keep, f.o[n][2 * half + 1] *= keep;
  }
}

template <typename T, int kDim>
__device__ inline void weigh_values(Fragments<T, kDim>& f, const float (&s)[kKeys / 8][4], const T* v) {
  constexpr int kPad = kDim + 8;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int kk = 0; kk < kKeys / 16; ++kk) {
    const uint32_t p[4] = {pack2<T>(s[2 * kk][0], s[2 * kk][1]), pack2<T>(s[2 * kk][2], s[2 * kk][3]),
                           pack2<T>(s[2 * kk + 1][0], s[2 * kk + 1][1]), pack2<T>(s[2 * kk + 1][2], s[2 * kk + 1][3])};
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      uint32_t b[4];
      const int row = kk * 16 + (lane & 15), column = n * 16 + (lane >> 4) * 8;
      ldmatrix4_trans(b, v + row * kPad + column);
      mma_16816<T>(f.o[2 * n], p, b[0], b[1]);
      mma_16816<T>(f.o[2 * n + 1], p, b[2], b[3]);
    }
  }
}

template <typename T, int kDim, bool kVec>
__global__ void __launch_bounds__(kThreads) attention_mma_kernel(Args a) {
  constexpr int kPad = kDim + 8, kTile = 64 * kPad;
  extern __shared__ char raw[];
  T* tiles = reinterpret_cast<T*>(raw);  // Q, K0, K1, V0, V1
  T *qs = tiles, *ks = tiles + kTile, *vs = tiles + 3 * kTile;
  const int64_t q0 = blockIdx.x * int64_t{kQueries};
  const int head = blockIdx.y, batch = blockIdx.z, kv = head / a.group;
  const T* q = reinterpret_cast<const T*>(a.q) + batch * a.q_batch + head * a.q_head;
  const T* k = reinterpret_cast<const T*>(a.k) + batch * a.k_batch + kv * a.k_head;
  const T* v = reinterpret_cast<const T*>(a.v) + batch * a.v_batch + kv * a.v_head;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t last_key = a.causal ? min(a.keys, q0 + kQueries) : a.keys;
  const int steps = static_cast<int>((last_key + kKeys - 1) / kKeys);
  load_tile<T, kDim, kVec>(qs, q, a.q_row, q0, a.queries, a.d);
  load_tile<T, kDim, kVec>(ks, k, a.k_row, 0, a.keys, a.d);
  load_tile<T, kDim, kVec>(vs, v, a.v_row, 0, a.keys, a.d);
  copies_wait<0>();
  __syncthreads();
  Fragments<T, kDim> f;
#pragma unroll
  for (int kk = 0; kk < kDim / 16; ++kk) {
    ldmatrix4(f.q[kk], qs + (warp * 16 + (lane & 15)) * kPad + kk * 16 + (lane >> 4) * 8);
  }
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) f.o[n][0] = f.o[n][1] = f.o[n][2] = f.o[n][3] = 0;
  f.top[0] = f.top[1] = -INFINITY;
  f.sum[0] = f.sum[1] = 0;
  const float scale_log2 = a.scale * 1.4426950408889634f;
  const int64_t row0 = q0 + warp * 16;
  for (int step = 0; step < steps; ++step) {
    const int now = step & 1, next = now ^ 1;
    if (step + 1 < steps) {
      load_tile<T, kDim, kVec>(ks + next * kTile, k, a.k_row, (step + 1) * int64_t{kKeys}, a.keys, a.d);
      load_tile<T, kDim, kVec>(vs + next * kTile, v, a.v_row, (step + 1) * int64_t{kKeys}, a.keys, a.d);
    }
    float s[kKeys / 8][4];
    scores<T, kDim>(f, ks + now * kTile, s);
    softmax_step<T, kDim>(f, s, a, row0, step * int64_t{kKeys}, scale_log2);
    weigh_values<T, kDim>(f, s, vs + now * kTile);
    copies_wait<0>();
    __syncthreads();
  }
  T* out = reinterpret_cast<T*>(a.out) + batch * a.o_batch + head * a.o_head;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = f.sum[half];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const int64_t row = row0 + (lane >> 2) + half * 8;
    if (row >= a.queries) continue;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int c = n * 8 + (lane & 3) * 2 + e;
        if (c < a.d) out[row * a.o_row + c] = from_float<T>(f.o[n][2 * half + e] / sum);
      }
    }
  }
}

// A warp owns one query at a time; 32 keys of the step lie in shared memory as f32, one per lane. P stays f32.
constexpr int kF32Queries = 16, kF32Warps = 4, kF32Keys = 32, kF32Dim = 256;

template <typename T>
__global__ void __launch_bounds__(kF32Warps * 32) attention_fma_kernel(Args a) {
  extern __shared__ float shared[];
  const int pad = a.d + 1;
  float *qs = shared, *ks = qs + kF32Queries * a.d, *vs = ks + kF32Keys * pad;
  const int64_t q0 = blockIdx.x * int64_t{kF32Queries};
  const int head = blockIdx.y, batch = blockIdx.z, kv = head / a.group, d = a.d;
  const T* q = reinterpret_cast<const T*>(a.q) + batch * a.q_batch + head * a.q_head;
  const T* k = reinterpret_cast<const T*>(a.k) + batch * a.k_batch + kv * a.k_head;
  const T* v = reinterpret_cast<const T*>(a.v) + batch * a.v_batch + kv * a.v_head;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, per_warp = kF32Queries / kF32Warps;
  for (int i = threadIdx.x; i < kF32Queries * d; i += blockDim.x) {
    const int64_t row = q0 + i / d;
    qs[i] = row < a.queries ? to_float(q[row * a.q_row + i % d]) : 0.0f;
  }
  constexpr int kMaxParts = kF32Dim / 32;
  float acc[kF32Queries / kF32Warps][kMaxParts] = {}, top[kF32Queries / kF32Warps], sum[kF32Queries / kF32Warps] = {};
  for (float& t : top) t = -INFINITY;
  const int64_t last_key = a.causal ? min(a.keys, q0 + kF32Queries) : a.keys;
  for (int64_t key0 = 0; key0 < last_key; key0 += kF32Keys) {
    __syncthreads();
    for (int i = threadIdx.x; i < kF32Keys * d; i += blockDim.x) {
      const int r = i / d, c = i % d;
      const bool inside = key0 + r < a.keys;
      ks[r * pad + c] = inside ? to_float(k[(key0 + r) * a.k_row + c]) : 0.0f;
      vs[r * pad + c] = inside ? to_float(v[(key0 + r) * a.v_row + c]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < per_warp; ++i) {
      const int64_t row = q0 + warp * per_warp + i;
      const float* query = qs + (warp * per_warp + i) * d;
      float s = 0;
      for (int c = 0; c < d; ++c) s = fmaf(query[c], ks[lane * pad + c], s);
      s *= a.scale;
      if (key0 + lane >= a.keys || (a.causal && key0 + lane > row)) s = -INFINITY;
      float m = s;
      for (int offset = 16; offset > 0; offset >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, offset));
      m = fmaxf(m, top[i]);
      const float base = m == -INFINITY ? 0.0f : m, keep = expf(top[i] - base);
      const float p = isnan(s) ? s : expf(s - base);
      float total = p;
      for (int offset = 16; offset > 0; offset >>= 1) total += __shfl_xor_sync(0xffffffffu, total, offset);
      sum[i] = sum[i] * keep + total;
      top[i] = m;
#pragma unroll
      for (int part = 0; part < kMaxParts; ++part) {
        const int c = part * 32 + lane;
        if (part * 32 >= d) break;
        float value = acc[i][part] * keep;
        for (int j = 0; j < kF32Keys; ++j) {
          const float weight = __shfl_sync(0xffffffffu, p, j);
          if (c < d) value = fmaf(weight, vs[j * pad + c], value);
        }
        acc[i][part] = value;
      }
    }
  }
  T* out = reinterpret_cast<T*>(a.out) + batch * a.o_batch + head * a.o_head;
#pragma unroll
  for (int i = 0; i < per_warp; ++i) {
    const int64_t row = q0 + warp * per_warp + i;
    if (row >= a.queries) continue;
#pragma unroll
    for (int part = 0; part < kMaxParts; ++part) {
      const int c = part * 32 + lane;
      if (c < d) out[row * a.o_row + c] = from_float<T>(acc[i][part] / sum[i]);
    }
  }
}

struct Strides {
  int64_t row, head, batch;
};

Strides strides_of(const View& view) {
  const int r = view.rank;
  H3_ASSERT((r == 3 || r == 4) && view.stride[r - 1] == 1);
  return {view.stride[r - 3], view.stride[r - 2], r == 4 ? view.stride[0] : 0};
}

Args make_args(const AttentionArgs& in) {
  Args a{};
  const Strides q = strides_of(in.q), k = strides_of(in.k), v = strides_of(in.v), o = strides_of(in.out);
  a.q = reinterpret_cast<const char*>(in.q.data);
  a.k = reinterpret_cast<const char*>(in.k.data);
  a.v = reinterpret_cast<const char*>(in.v.data);
  a.out = reinterpret_cast<char*>(in.out.data);
  a.q_row = q.row, a.q_head = q.head, a.q_batch = q.batch;
  a.k_row = k.row, a.k_head = k.head, a.k_batch = k.batch;
  a.v_row = v.row, a.v_head = v.head, a.v_batch = v.batch;
  a.o_row = o.row, a.o_head = o.head, a.o_batch = o.batch;
  const int r = in.q.rank;
  a.queries = in.q.dim[r - 3];
  a.keys = in.k.dim[r - 3];
  a.heads = static_cast<int>(in.q.dim[r - 2]);
  a.group = static_cast<int>(in.q.dim[r - 2] / in.k.dim[r - 2]);
  a.d = static_cast<int>(in.q.dim[r - 1]);
  a.scale = in.scale;
  a.causal = in.causal;
  return a;
}

template <typename T>
bool can_copy_vectors(const Args& a) {
  const auto multiple = [](int64_t n) { return n % 8 == 0; };
  const uintptr_t addresses =
      reinterpret_cast<uintptr_t>(a.q) | reinterpret_cast<uintptr_t>(a.k) | reinterpret_cast<uintptr_t>(a.v);
  return a.d % 8 == 0 && addresses % 16 == 0 && multiple(a.q_row) && multiple(a.q_head) && multiple(a.q_batch) &&
         multiple(a.k_row) && multiple(a.k_head) && multiple(a.k_batch) && multiple(a.v_row) && multiple(a.v_head) &&
         multiple(a.v_batch);
}

template <typename T, int kDim>
void launch_mma(cudaStream_t stream, const Args& a, dim3 grid) {
  const LaunchShape shape{grid, dim3(kThreads), size_t{5} * 64 * (kDim + 8) * sizeof(T)};
  if (can_copy_vectors<T>(a))
    launch(stream, "attention", attention_mma_kernel<T, kDim, true>, shape, a);
  else
    launch(stream, "attention", attention_mma_kernel<T, kDim, false>, shape, a);
}

template <typename T>
void launch_half(cudaStream_t stream, const Args& a, dim3 grid) {
  if (a.d <= 64)
    launch_mma<T, 64>(stream, a, grid);
  else if (a.d <= 80)
    launch_mma<T, 80>(stream, a, grid);
  else
    launch_mma<T, 128>(stream, a, grid);
}

}  // namespace

void CudaOps::attention_generic(const AttentionArgs& in) {
  const Args a = make_args(in);
  const unsigned batch = in.q.rank == 4 ? static_cast<unsigned>(in.q.dim[0]) : 1;
  const unsigned heads = static_cast<unsigned>(a.heads);
  if (in.q.type == DType::f32 || a.d > 128) {
    H3_ASSERT(a.d <= kF32Dim);
    const LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(a.queries, kF32Queries)), heads, batch),
                            dim3(kF32Warps * 32),
                            (static_cast<size_t>(kF32Queries) * a.d + size_t{2} * kF32Keys * (a.d + 1)) * 4};
    H3_FLOAT_TYPE(in.q.type, launch(stream(), "attention_fma", attention_fma_kernel<T>, shape, a);)
    return;
  }
  const dim3 grid(static_cast<unsigned>(ceil_div(a.queries, kQueries)), heads, batch);
  if (in.q.type == DType::bf16)
    launch_half<bf16>(stream(), a, grid);
  else
    launch_half<__half>(stream(), a, grid);
}

}  // namespace h3::cuda
