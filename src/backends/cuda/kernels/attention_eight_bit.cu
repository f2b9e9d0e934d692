// Attention in eight bits on compute capability 9.0 (ops.h: Ops::attention, the second contract): int8 scores, e4m3
// weights and values. A pass before it makes the codes; it is part of every call.
#include "backends/cuda/kernels/attention_hopper.cuh"
#include "backends/cuda/kernels/attention_kernels.h"
#include "codec/float8_row.h"
#include "codec/int8_row.h"

namespace h3::cuda {
namespace {

constexpr int kCodeThreads = 256;  // sixteen a row, eight channels each
constexpr int kRowThreads = kHopperDim / 8;
constexpr int kMaxChunks = 32;  // of keys, whose sums are added in order
constexpr int kKeyBlock = static_cast<int>(kEightBitKeys);

struct Coding {
  const void *q, *k, *v;
  int64_t q_row, q_head, k_row, k_head, v_row, v_head;
  int64_t queries, keys, q_rows, key_blocks;  // q_rows: of q8, whole query tiles
  int64_t chunk;                              // keys
  int chunks, heads;
  float* partial;                     // [heads, chunks, 2, 128]: sum of k, largest |v| as bits
  float *mean, *v_inverse, *v_scale;  // [heads, 128]
  float *q_scale, *k_scale;           // [heads, q_rows], [heads, key_blocks]
  uint8_t *q8, *k8, *v8;              // [heads, q_rows, 128], [heads, keys of the blocks, 128], [heads, 128, keys]
};

// The weights of a step lie in registers as the accumulators of its scores did: of sixteen keys a thread has 2 t, 2 t +
// 1 and 8 + 2 t, 9 + 2 t. The product takes a thread's four as neighbours, so v8 has the keys of each sixteen in this
// order.
__device__ inline int key_of_place(int quad, int i) { return quad / 4 * 16 + quad % 4 * 2 + (i & 1) + (i & 2) * 4; }

template <typename T>
struct EightBitMath {
  static constexpr int kDim = kHopperDim, kQueryStages = 1, kStages = 4, kTileKeys = kKeyBlock;
  static constexpr bool kValuesByChannel = true;  // [128 channels][128 keys]
  static constexpr bool kOverlap = false;         // for which a thread has too few registers
  static constexpr uint32_t kQueryBytes = kHopperRows * kHopperDim, kTileBytes = kTileKeys * kHopperDim;
  static constexpr int kWeightRegisters = kTileKeys / 8;
  static constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: added to a whole number, its bits are that of a float

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  __device__ EightBitMath(const HopperJob& job, int head, int row) : job_(job), k_scale_(job.k_scale) {
    const float* q = job.q_scale + head * job.q_rows + row;
    for (int half = 0; half < 2; ++half) q_factor_[half] = q[tile_row(half)] * job.scale_log2;
    k_scale_ += head * job.key_blocks;
    next_ = k_scale_[job.key_blocks - 1];
  }

  __device__ static void before_scores(float (&s)[64]) {
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] = kMagic;
  }
  __device__ static void issue_scores(float (&s)[64], uint32_t queries, uint32_t keys) {
    int32_t(&whole)[64] = reinterpret_cast<int32_t(&)[64]>(s);
    const uint64_t q = tile_descriptor(queries, 16), k = tile_descriptor(keys, 16);
#pragma unroll
    for (int kk = 0; kk < kHopperDim / 32; ++kk) product_128_int8(whole, q + kk * 32 / 16, k + kk * 32 / 16);
  }
  __device__ static void issue_values(float (&o)[64], const uint32_t (&p)[kWeightRegisters], uint32_t values) {
    const uint64_t v = tile_descriptor(values, 16);
#pragma unroll
    for (int kk = 0; kk < kTileKeys / 32; ++kk) product_128_e4m3(o, p + 4 * kk, v + kk * 32 / 16);
  }
  __device__ void weigh(float (&s)[64], HopperRows& rows, int j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float factor = q_factor_[half] * next_;
      if (factor == 0) factor = 1e-30f;  // times the -infinity of a masked key
      const float top = ceilf((largest_score(s, half) - kMagic) * factor) - 8;
      const float base = fmaxf(rows.base[half], top);
      weigh_scores(s, rows, half, factor, base, fmaf(-kMagic, factor, -base));
    }
    next_ = k_scale_[j > 0 ? j - 1 : 0];
  }
  __device__ static void pack(const float (&s)[64], uint32_t (&p)[kWeightRegisters]) {
#pragma unroll
    for (int i = 0; i < kWeightRegisters; ++i) {  // two rows, then the next sixteen keys
      const int at = i / 2 * 8 + i % 2 * 2;
      p[i] = round_four(s[at], s[at + 1], s[at + 4], s[at + 5]);
    }
  }
  __device__ void store(const float (&o)[64], const HopperRows& rows, int head, int first_row) const {
    const int column = threadIdx.x % 4 * 2;
    T* const out = static_cast<T*>(job_.out) + head * job_.o_head + column;
    const float* v_scale = job_.v_scale + head * kHopperDim + column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = row_sum(rows.sum[half]);
      const int row = first_row + tile_row(half);
      if (row >= job_.queries) continue;
#pragma unroll
      for (int j = 0; j < kHopperDim / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          out[row * job_.o_row + 8 * j + e] = from_float<T>(o[4 * j + 2 * half + e] * v_scale[8 * j + e] / sum);
        }
      }
    }
  }

 private:
  const HopperJob& job_;
  const float* k_scale_;
  float q_factor_[2], next_;
#endif
};

// ---- codes ----
template <typename T>
__global__ void __launch_bounds__(kCodeThreads) sum_keys_kernel(Coding a) {
  const int part = threadIdx.x % kRowThreads, first = threadIdx.x / kRowThreads, head = blockIdx.y;
  const T* k = static_cast<const T*>(a.k) + head * a.k_head + part * 8;
  const T* v = static_cast<const T*>(a.v) + head * a.v_head + part * 8;
  const int64_t begin = blockIdx.x * a.chunk, end = min(a.keys, begin + a.chunk);
  float sum[8] = {};
  uint32_t top[8] = {};
#pragma unroll 4
  for (int64_t row = begin + first; row < end; row += kCodeThreads / kRowThreads) {
    Vec8<T> x, y;
    x.load(k + row * a.k_row);
    y.load(v + row * a.v_row);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] += x.v[i], top[i] = max(top[i], f32_bits(y.v[i]) & 0x7fffffffu);
  }
  __shared__ float sums[kCodeThreads / kRowThreads][kHopperDim];
  __shared__ uint32_t tops[kCodeThreads / kRowThreads][kHopperDim];
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[first][part * 8 + i] = sum[i], tops[first][part * 8 + i] = top[i];
  __syncthreads();
  if (threadIdx.x >= kHopperDim) return;
  float total = 0;
  uint32_t largest = 0;
  for (int i = 0; i < kCodeThreads / kRowThreads; ++i) {
    total += sums[i][threadIdx.x];
    largest = max(largest, tops[i][threadIdx.x]);
  }
  float* const out = a.partial + (int64_t{head} * a.chunks + blockIdx.x) * 2 * kHopperDim + threadIdx.x;
  out[0] = total;
  out[kHopperDim] = f32_from_bits(largest);
}

template <typename T>
__global__ void __launch_bounds__(kHopperDim) finish_sums_kernel(Coding a) {
  const float* in = a.partial + int64_t{blockIdx.x} * a.chunks * 2 * kHopperDim + threadIdx.x;
  float total = 0;
  uint32_t largest = 0;
  for (int i = 0; i < a.chunks; ++i, in += 2 * kHopperDim) {
    total += in[0];
    largest = max(largest, f32_bits(in[kHopperDim]));
  }
  const int at = blockIdx.x * kHopperDim + threadIdx.x;
  a.mean[at] = round_to<T>(total / static_cast<float>(a.keys));
  a.v_inverse[at] = float8_row_inverse(f32_from_bits(largest));
  a.v_scale[at] = float8_row_scale(f32_from_bits(largest));
}

__device__ inline uint2 int8_codes(const float (&x)[8], float inverse) {
  uint32_t codes[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    codes[i / 4] |= static_cast<uint32_t>(static_cast<uint8_t>(int8_row_quantise(x[i], inverse))) << i % 4 * 8;
  }
  return make_uint2(codes[0], codes[1]);
}

__device__ inline uint32_t largest_bits(const float (&x)[8]) {
  uint32_t top = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) top = max(top, f32_bits(x[i]) & 0x7fffffffu);
  return top;
}

template <typename T>
__device__ void code_queries(const Coding& a, int64_t first_row, int head) {
  const int part = threadIdx.x % kRowThreads;
#pragma unroll
  for (int i = 0; i < kHopperRows * kRowThreads / kCodeThreads; ++i) {
    const int64_t row = first_row + i * (kCodeThreads / kRowThreads) + threadIdx.x / kRowThreads;
    Vec8<T> x{};
    if (row < a.queries) x.load(static_cast<const T*>(a.q) + row * a.q_row + head * a.q_head + part * 8);
    uint32_t top = largest_bits(x.v);
#pragma unroll
    for (int o = kRowThreads / 2; o > 0; o /= 2) top = max(top, __shfl_xor_sync(0xffffffffu, top, o));
    const float largest = f32_from_bits(top);
    const int64_t at = head * a.q_rows + row;
    if (part == 0) a.q_scale[at] = int8_row_scale(largest);
    *reinterpret_cast<uint2*>(a.q8 + at * kHopperDim + part * 8) = int8_codes(x.v, int8_row_inverse(largest));
  }
}

// A block of 128 keys. A thread has eight channels of two times four keys that are neighbours in v8.
template <typename T>
__device__ void code_keys(const Coding& a, int64_t block, int head) {
  constexpr int kPasses = kKeyBlock / 4 * kRowThreads / kCodeThreads;
  const int part = threadIdx.x % kRowThreads;
  const int64_t first = block * kKeyBlock;
  const auto key = [&](int pass, int i) {
    return key_of_place(pass * (kCodeThreads / kRowThreads) + threadIdx.x / kRowThreads, i);
  };
  Vec8<T> mean;
#pragma unroll
  for (int e = 0; e < 8; ++e) mean.v[e] = a.mean[head * kHopperDim + part * 8 + e];
  Vec8<T> k[kPasses][4];
  uint32_t top = 0;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = first + key(pass, i);
      Vec8<T>& x = k[pass][i];
      x = {};
      if (row >= a.keys) continue;
      x.load(static_cast<const T*>(a.k) + row * a.k_row + head * a.k_head + part * 8);
#pragma unroll
      for (int e = 0; e < 8; ++e) x.v[e] -= mean.v[e];
      top = max(top, largest_bits(x.v));
    }
  }
  __shared__ uint32_t tops[kCodeThreads / 32];
  __shared__ uint32_t turned[kHopperDim][kKeyBlock / 4];  // words of four keys, their places swizzled by `part`
#pragma unroll
  for (int o = 16; o > 0; o /= 2) top = max(top, __shfl_xor_sync(0xffffffffu, top, o));
  if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCodeThreads / 32; ++i) top = max(top, tops[i]);
  const float largest = f32_from_bits(top), inverse = int8_row_inverse(largest);
  if (threadIdx.x == 0) a.k_scale[head * a.key_blocks + block] = int8_row_scale(largest);
  float v_inverse[8];
#pragma unroll
  for (int e = 0; e < 8; ++e) v_inverse[e] = a.v_inverse[head * kHopperDim + part * 8 + e];
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    Vec8<T> v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = first + key(pass, i);
      *reinterpret_cast<uint2*>(a.k8 + ((head * a.key_blocks * kKeyBlock) + row) * kHopperDim + part * 8) =
          int8_codes(k[pass][i].v, inverse);
      v[i] = {};
      if (row < a.keys) v[i].load(static_cast<const T*>(a.v) + row * a.v_row + head * a.v_head + part * 8);
    }
    const int quad = pass * (kCodeThreads / kRowThreads) + threadIdx.x / kRowThreads;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      turned[part * 8 + e][quad ^ part * 2] = round_four(v[0].v[e] * v_inverse[e], v[1].v[e] * v_inverse[e],
                                                         v[2].v[e] * v_inverse[e], v[3].v[e] * v_inverse[e]);
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kHopperDim * kKeyBlock / 16 / kCodeThreads; ++i) {
    const int piece = i * kCodeThreads + threadIdx.x, c = piece / 8, from = c / 8;
    uint4 words = reinterpret_cast<const uint4*>(turned[c])[piece % 8 ^ from / 2];
    if (from % 2 != 0) words = make_uint4(words.z, words.w, words.x, words.y);
    *reinterpret_cast<uint4*>(a.v8 + (int64_t{head} * kHopperDim + c) * a.key_blocks * kKeyBlock + first +
                              piece % 8 * 16) = words;
  }
}

template <typename T>
__global__ void __launch_bounds__(kCodeThreads) code_kernel(Coding a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if (blockIdx.x < a.key_blocks)
    code_keys<T>(a, blockIdx.x, blockIdx.y);
  else
    code_queries<T>(a, (blockIdx.x - a.key_blocks) * kHopperRows, blockIdx.y);
#endif
}

// Pieces of the scratch, each at a multiple of 256 bytes.
int64_t place(Coding& a, std::byte* base) {
  int64_t used = 0;
  const auto take = [&](auto*& out, int64_t count) {
    out = reinterpret_cast<std::remove_reference_t<decltype(out)>>(base + used);
    used += ceil_div(count * int64_t{sizeof(*out)}, 256) * 256;
  };
  const int64_t channels = int64_t{a.heads} * kHopperDim;
  take(a.q8, a.q_rows * channels);
  take(a.k8, a.key_blocks * kKeyBlock * channels);
  take(a.v8, a.key_blocks * kKeyBlock * channels);
  take(a.partial, kMaxChunks * 2 * channels);
  take(a.mean, channels);
  take(a.v_inverse, channels);
  take(a.v_scale, channels);
  take(a.q_scale, a.q_rows * a.heads);
  take(a.k_scale, a.key_blocks * a.heads);
  return used;
}

Coding coding_of(int64_t queries, int64_t keys, int64_t heads) {
  Coding a{};
  a.queries = queries, a.keys = keys, a.heads = static_cast<int>(heads);
  a.q_rows = ceil_div(queries, kHopperRows) * kHopperRows;
  a.key_blocks = ceil_div(keys, kKeyBlock);
  a.chunks = static_cast<int>(std::clamp<int64_t>(keys / 256, 1, kMaxChunks));
  a.chunk = ceil_div(keys, a.chunks);
  return a;
}

template <typename T>
void run(cudaStream_t stream, const HeadsOfAttention& in, const Coding& a) {
  const unsigned heads = static_cast<unsigned>(a.heads);
  const char* const name = "attention in eight bits";
  launch(stream, name, sum_keys_kernel<T>, {dim3(static_cast<unsigned>(a.chunks), heads), dim3(kCodeThreads)}, a);
  launch(stream, name, finish_sums_kernel<T>, {dim3(heads), dim3(kHopperDim)}, a);
  const unsigned blocks = static_cast<unsigned>(a.key_blocks + a.q_rows / kHopperRows);
  launch(stream, name, code_kernel<T>, {dim3(blocks, heads), dim3(kCodeThreads)}, a);

  using Math = EightBitMath<T>;
  const int64_t keys = a.key_blocks * kKeyBlock;
  const auto map = [&](const void* base, int64_t inner, int64_t rows, int box_inner, int box_rows) {
    return tensor_map({.base = base,
                       .type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                       .sizes = {inner, rows, 1, a.heads},
                       .strides = {inner, inner * rows, inner * rows},
                       .box = {box_inner, box_rows, 1}},
                      name);
  };
  const HopperMaps maps{.q = map(a.q8, kHopperDim, a.q_rows, kHopperDim, kHopperRows),
                        .k = map(a.k8, kHopperDim, keys, kHopperDim, Math::kTileKeys),
                        .v = map(a.v8, keys, kHopperDim, Math::kTileKeys, kHopperDim)};
  HopperJob job{};
  job.out = in.out;
  job.o_row = in.o_row, job.o_head = in.o_head;
  job.queries = static_cast<int>(in.queries), job.keys = static_cast<int>(in.keys), job.heads = in.heads;
  job.scale_log2 = in.scale_log2;
  job.q_scale = a.q_scale, job.k_scale = a.k_scale, job.v_scale = a.v_scale;
  job.q_rows = a.q_rows, job.key_blocks = a.key_blocks;
  launch_hopper<Math>(stream, name, maps, job);
}

}  // namespace

const char* refuses_attention_eight_bit(int64_t d) {
  if (!has_tensor_maps()) return "its kernel is for cards of compute capability 9.0 and builds with that target";
  return d == kHopperDim ? "" : "its kernel takes heads of 128";
}

int64_t attention_eight_bit_bytes(int64_t queries, int64_t keys, int64_t heads) {
  Coding a = coding_of(queries, keys, heads);
  return place(a, nullptr);
}

void attention_eight_bit(cudaStream_t stream, const HeadsOfAttention& in, void* scratch) {
  Coding a = coding_of(in.queries, in.keys, in.heads);
  place(a, static_cast<std::byte*>(scratch));
  a.q = in.q, a.k = in.k, a.v = in.v;
  a.q_row = in.q_row, a.q_head = in.q_head, a.k_row = in.k_row;
  a.k_head = in.k_head, a.v_row = in.v_row, a.v_head = in.v_head;
  H3_FLOAT_TYPE(in.type, run<T>(stream, in, a);)
}

}  // namespace h3::cuda
