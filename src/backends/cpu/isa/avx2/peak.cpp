// VPMADDWD with its addition, and VFMADD231PS, alone: twelve independent accumulators, no load, no store. They are what
// the kernels of this level multiply with (isa/gemm_inl.h).
#include <immintrin.h>

#include "backends/cpu/isa/kernels.h"

namespace h3::isa {
namespace {

constexpr int kAccumulators = 12;

void run(bool integer, int64_t steps) {
  __m256i a = _mm256_set1_epi32(static_cast<int>(steps));
  const __m256i b = _mm256_set1_epi32(0x00010002);
  const __m256 x = _mm256_set1_ps(1 / static_cast<float>(steps)), y = _mm256_set1_ps(0.5f);
  __m256i acc[kAccumulators];
#pragma GCC unroll 12
  for (int j = 0; j < kAccumulators; ++j) acc[j] = _mm256_setzero_si256();
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kAccumulators; ++j) {
      if (integer) {
        asm volatile("" : "+x"(a));  // one product for all would do
        acc[j] = _mm256_add_epi32(acc[j], _mm256_madd_epi16(a, b));
      } else {
        acc[j] = (__m256i)_mm256_fmadd_ps(x, y, (__m256)acc[j]);
      }
      asm volatile("" : "+x"(acc[j]));
    }
  }
}

constexpr double kProducts = 2.0 * kAccumulators * 8;

}  // namespace

const Peak kPeakAvx2 = {.run = run, .int8_step = 2 * kProducts, .float_step = kProducts};

}  // namespace h3::isa
