// Exact attention of heads of 64 on compute capability 9.0, in bf16 and f16, for batches of sequences.
//
// With heads of 64 the tensor cores need as long for a tile as the exponential unit, and every other instruction of the
// softmax counts. So the scores of a tile and the weighted values of the tile before go to the tensor cores in one
// piece, with one wait, while two other warp groups make weights.
#include "backends/cuda/kernels/attention_hopper.cuh"
#include "backends/cuda/kernels/attention_kernels.h"

namespace h3::cuda {
namespace {

template <typename T>
struct Math64 {
  static constexpr int kDim = 64, kQueryStages = 2, kStages = 4, kTileKeys = 128;
  static constexpr int kFewKeys = 32;  // of a last tile that has no more only so many are multiplied
  static constexpr bool kValuesByChannel = false;
  static constexpr uint32_t kQueryBytes = kHopperRows * kDim * 2, kTileBytes = kTileKeys * kDim * 2;
};

}  // namespace

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace {

template <typename T>
__device__ inline uint32_t round_pair_to(float low, float high) {
  if constexpr (std::is_same_v<T, __half>)
    return round_pair_f16(low, high);
  else
    return round_pair(low, high);
}

template <typename T>
class Consumer64 : private HopperWalk<Math64<T>> {
 public:
  using Walk = HopperWalk<Math64<T>>;
  using Walk::HopperWalk;
  __device__ void run() {
    Walk::walk([&](int head, int row) { attend(head, row); });
  }

 private:
  static constexpr int kTileKeys = Math64<T>::kTileKeys, kFewKeys = Math64<T>::kFewKeys;
  static constexpr float kLargestSum = 16384;  // of a thread's weights of a row and tile; f16 ends at 65504
  using Sums = float[Math64<T>::kDim / 2];
  using Walk::job_, Walk::count_;

  template <int keys>
  __device__ void issue_scores(float (&s)[keys / 2]) {
    Walk::wait_keys();
    const uint64_t q = tile_descriptor(Walk::queries_here(), 16), k = tile_descriptor(Walk::keys_here(), 16);
    products_begin();
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) scores_64<T>(s, q + kk * 32 / 16, k + kk * 32 / 16, kk);
    products_end();
  }
  template <int keys>
  __device__ void issue_values(Sums& o, uint32_t (&p)[keys / 4]) {
    Walk::wait_values();
    const uint64_t v = tile_descriptor(Walk::values_here(), 16);
    products_begin();
#pragma unroll
    for (int kk = 0; kk < keys / 16; ++kk) values_64<T>(o, p + 4 * kk, v + kk * 16 * 128 / 16);
    products_end();
  }
  template <int keys>
  __device__ void scores(float (&s)[keys / 2]) {
    issue_scores<keys>(s);
    products_wait();
    settle(s);
    Walk::leave_keys();
  }
  template <int keys>
  __device__ void weighted_values(Sums& o, uint32_t (&p)[keys / 4]) {
    settle(p);
    settle(o);
    issue_values<keys>(o, p);
    products_wait();
    settle(o);
    Walk::leave_values();
  }
  // The scores of a tile and the weighted values of the one before it, of `keys` keys.
  template <int keys>
  __device__ void scores_and_values(float (&s)[kTileKeys / 2], Sums& o, uint32_t (&p)[keys / 4]) {
    settle(p);
    settle(o);
    issue_scores<kTileKeys>(s);
    issue_values<keys>(o, p);
    products_wait();
    settle(s);
    settle(o);
    Walk::leave_keys();
    Walk::leave_values();
  }

  // Scores become weights relative to the largest score so far.
  template <int n>
  __device__ void weigh(float (&s)[n], HopperRows& rows, uint32_t (&p)[n / 2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float base = fmaxf(rows.base[half], largest_score(s, half) * job_.scale_log2);
      weigh_scores(s, rows, half, job_.scale_log2, base, -base);
    }
#pragma unroll
    for (int i = 0; i < n / 2; ++i) p[i] = round_pair_to<T>(s[2 * i], s[2 * i + 1]);
  }

  // The same relative to the base as it is. It moves only where weights outgrow what f16 holds, for which a sum over
  // the tile is looked at: no largest score has to be found. Rounding to T is relative, so larger weights are no
  // coarser.
  template <int n>
  __device__ void weigh_on(float (&s)[n], HopperRows& rows, uint32_t (&p)[n / 2]) const {
    float sum[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float a = 0, b = 0;
#pragma unroll
      for (int j = 0; j < n / 4; ++j) {
        const float x = exp2_fast(fmaf(s[4 * j + 2 * half], job_.scale_log2, -rows.base[half]));
        const float y = exp2_fast(fmaf(s[4 * j + 2 * half + 1], job_.scale_log2, -rows.base[half]));
        a += x, b += y;
        p[2 * j + half] = round_pair_to<T>(x, y);
      }
      sum[half] = a + b;
    }
    if (__any_sync(0xffffffffu, !(sum[0] <= kLargestSum && sum[1] <= kLargestSum))) return weigh(s, rows, p);
#pragma unroll
    for (int half = 0; half < 2; ++half) rows.keep[half] = 1, rows.sum[half] += sum[half];
  }

  // The first tile taken, which is the last of the keys.
  template <int keys>
  __device__ void first_tile(HopperRows& rows, uint32_t (&p)[keys / 4], int valid) {
    float s[keys / 2];
    scores<keys>(s);
    if (valid < keys) mask_scores(s, valid);
    weigh(s, rows, p);
  }

  __device__ void attend(int head, int row) {
    Sums o;
    uint32_t p[kTileKeys / 4];
    HopperRows rows{{-INFINITY, -INFINITY}, {0, 0}, {1, 1}};
#pragma unroll
    for (int i = 0; i < Math64<T>::kDim / 2; ++i) o[i] = 0;
    int j = count_ - 1;
    const int valid = job_.keys - j * kTileKeys;
    if (valid <= kFewKeys && j > 0) {
      uint32_t few[kFewKeys / 4];
      first_tile<kFewKeys>(rows, few, valid);
      float s[kTileKeys / 2];
      scores_and_values<kFewKeys>(s, o, few);
      weigh(s, rows, p);
      rescale(o, rows.keep);
      --j;
    } else {
      first_tile<kTileKeys>(rows, p, valid);
    }
#pragma unroll 1
    while (--j >= 0) {
      float s[kTileKeys / 2];
      scores_and_values<kTileKeys>(s, o, p);
      weigh_on(s, rows, p);
      rescale(o, rows.keep);
    }
    Walk::leave_queries();
    weighted_values<kTileKeys>(o, p);
    store(o, rows, head, row);
  }

  __device__ void store(const Sums& o, const HopperRows& rows, int head, int first_row) const {
    T* const out = static_cast<T*>(job_.out) + head / job_.heads_of_one * job_.o_batch +
                   head % job_.heads_of_one * job_.o_head + threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = row_sum(rows.sum[half]);
      const int row = first_row + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + half * 8;
      if (row >= job_.queries) continue;
#pragma unroll
      for (int j = 0; j < Math64<T>::kDim / 8; ++j) {
        *reinterpret_cast<uint32_t*>(out + row * job_.o_row + 8 * j) =
            round_pair_to<T>(o[4 * j + 2 * half] / sum, o[4 * j + 2 * half + 1] / sum);
      }
    }
  }
};

}  // namespace

template <typename T>
struct ConsumerOf<Math64<T>> {
  using Type = Consumer64<T>;
};

#endif

namespace {

template <typename T>
void run_64(cudaStream_t stream, const HeadsOfAttention& a, CUtensorMapDataType type) {
  const auto map = [&](const void* base, int64_t rows, int64_t row, int64_t head, int64_t batch, int box) {
    return tensor_map({.base = base,
                       .type = type,
                       .sizes = {64, rows, a.heads, a.batch},
                       .strides = {row * 2, head * 2, batch * 2},
                       .box = {64, box, 1}},
                      "attention");
  };
  constexpr int kKeys = Math64<T>::kTileKeys;
  const HopperMaps maps{.q = map(a.q, a.queries, a.q_row, a.q_head, a.q_batch, kHopperRows),
                        .k = map(a.k, a.keys, a.k_row, a.k_head, a.k_batch, kKeys),
                        .v = map(a.v, a.keys, a.v_row, a.v_head, a.v_batch, kKeys)};
  HopperJob job{};
  job.out = a.out;
  job.o_row = a.o_row, job.o_head = a.o_head, job.o_batch = a.o_batch;
  job.queries = static_cast<int>(a.queries), job.keys = static_cast<int>(a.keys);
  job.heads = a.heads * a.batch, job.heads_of_one = a.heads;
  job.scale_log2 = a.scale_log2;
  launch_hopper<Math64<T>>(stream, "attention", maps, job);
}

}  // namespace

void attention_hopper_64(cudaStream_t stream, const HeadsOfAttention& a) {
  if (a.type == DType::f16)
    run_64<__half>(stream, a, CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
  else
    run_64<bf16>(stream, a, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
}

}  // namespace h3::cuda
