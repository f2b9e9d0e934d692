// Exact attention of heads of 128 in bf16 on compute capability 9.0.
#include "backends/cuda/kernels/attention_hopper.cuh"
#include "backends/cuda/kernels/attention_kernels.h"

namespace h3::cuda {
namespace {

struct ExactMath {
  // The largest tile for which three warp groups have registers. More would spill, two groups would read more keys.
  static constexpr int kDim = kHopperDim, kQueryStages = 1, kStages = 4, kTileKeys = 80;
  static constexpr bool kValuesByChannel = false, kOverlap = true;
  // Two halves of 64 channels: [2][rows][128 bytes].
  static constexpr uint32_t kQueryBytes = kHopperRows * kHopperDim * 2, kTileBytes = kTileKeys * kHopperDim * 2;
  static constexpr int kWeightRegisters = kTileKeys / 4;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  __device__ ExactMath(const HopperJob& job, int, int) : job_(job) {}

  __device__ static void before_scores(float (&)[kTileKeys / 2]) {}
  __device__ static void issue_scores(float (&s)[kTileKeys / 2], uint32_t queries, uint32_t keys) {
    const uint64_t q = tile_descriptor(queries, 16), k = tile_descriptor(keys, 16);
#pragma unroll
    for (int kk = 0; kk < kHopperDim / 16; ++kk) {
      product_80(s, q + (kk / 4 * (kQueryBytes / 2) + kk % 4 * 32) / 16,
                 k + (kk / 4 * (kTileBytes / 2) + kk % 4 * 32) / 16, kk);
    }
  }
  __device__ static void issue_values(float (&o)[64], const uint32_t (&p)[kWeightRegisters], uint32_t values) {
    const uint64_t v = tile_descriptor(values, kTileBytes / 2);
#pragma unroll
    for (int kk = 0; kk < kTileKeys / 16; ++kk) product_128(o, p + 4 * kk, v + kk * 16 * 128 / 16);
  }
  __device__ void weigh(float (&s)[kTileKeys / 2], HopperRows& rows, int) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float base = fmaxf(rows.base[half], largest_score(s, half) * job_.scale_log2);
      weigh_scores(s, rows, half, job_.scale_log2, base, -base);
    }
  }
  __device__ static void pack(const float (&s)[kTileKeys / 2], uint32_t (&p)[kWeightRegisters]) {
#pragma unroll
    for (int i = 0; i < kWeightRegisters; ++i) p[i] = round_pair(s[2 * i], s[2 * i + 1]);
  }
  __device__ void store(const float (&o)[64], const HopperRows& rows, int head, int first_row) const {
    bf16* const out = static_cast<bf16*>(job_.out) + head * job_.o_head + threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = row_sum(rows.sum[half]);
      const int row = first_row + tile_row(half);
      if (row >= job_.queries) continue;
#pragma unroll
      for (int j = 0; j < kHopperDim / 8; ++j) {
        *reinterpret_cast<uint32_t*>(out + row * job_.o_row + 8 * j) =
            round_pair(o[4 * j + 2 * half] / sum, o[4 * j + 2 * half + 1] / sum);
      }
    }
  }

 private:
  const HopperJob& job_;
#endif
};

}  // namespace

bool attention_hopper_takes(const HeadsOfAttention& a) {
  const int64_t strides =
      a.q_row | a.q_head | a.q_batch | a.k_row | a.k_head | a.k_batch | a.v_row | a.v_head | a.v_batch;
  const uintptr_t addresses =
      reinterpret_cast<uintptr_t>(a.q) | reinterpret_cast<uintptr_t>(a.k) | reinterpret_cast<uintptr_t>(a.v);
  const bool reads = strides % 8 == 0 && addresses % 16 == 0;
  const bool writes = (a.o_row | a.o_head | a.o_batch) % 2 == 0 && reinterpret_cast<uintptr_t>(a.out) % 4 == 0;
  const bool wide = a.d == kHopperDim && a.type == DType::bf16 && a.batch == 1;
  const bool narrow = a.d == 64 && (a.type == DType::bf16 || a.type == DType::f16);
  return (wide || narrow) && a.keys > 0 && reads && writes && has_tensor_maps();
}

void attention_hopper(cudaStream_t stream, const HeadsOfAttention& a) {
  if (a.d == 64) return attention_hopper_64(stream, a);
  const auto map = [&](const void* base, int64_t rows, int64_t row, int64_t head, int box) {
    return head_map(base, rows, row, a.heads, head, box, "attention");
  };
  const HopperMaps maps{.q = map(a.q, a.queries, a.q_row, a.q_head, kHopperRows),
                        .k = map(a.k, a.keys, a.k_row, a.k_head, ExactMath::kTileKeys),
                        .v = map(a.v, a.keys, a.v_row, a.v_head, ExactMath::kTileKeys)};
  HopperJob job{};
  job.out = a.out;
  job.o_row = a.o_row, job.o_head = a.o_head;
  job.queries = static_cast<int>(a.queries), job.keys = static_cast<int>(a.keys), job.heads = a.heads;
  job.scale_log2 = a.scale_log2;
  launch_hopper<ExactMath>(stream, "attention", maps, job);
}

}  // namespace h3::cuda
