// VPDPBUSD and VDPBF16PS alone: twelve independent accumulators, no load, no store.
#include <immintrin.h>

#include "backends/cpu/isa/kernels.h"

namespace h3::isa {
namespace {

constexpr int kAccumulators = 12;

void run(bool integer, int64_t steps) {
  __m512i a = _mm512_set1_epi32(static_cast<int>(steps)), b = _mm512_set1_epi32(0x01020304);
  __m512i acc[kAccumulators];
#pragma GCC unroll 12
  for (int j = 0; j < kAccumulators; ++j) acc[j] = _mm512_setzero_si512();
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kAccumulators; ++j) {
      if (integer) {
        acc[j] = _mm512_dpbusd_epi32(acc[j], a, b);
      } else {
        acc[j] = (__m512i)_mm512_dpbf16_ps((__m512)acc[j], (__m512bh)a, (__m512bh)b);
      }
      asm volatile("" : "+v"(acc[j]));  // a product of constants is not to be known before
    }
  }
}

constexpr double kProducts = 2.0 * kAccumulators * 16;

}  // namespace

const Peak kPeakAvx512 = {.run = run, .int8_step = 4 * kProducts, .float_step = 2 * kProducts};

}  // namespace h3::isa
