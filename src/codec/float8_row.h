// One row of values as e4m3 with one scale: symmetric, absmax / 448 (spec formats C.3). The same arithmetic, in f32 and
// without fused multiply-adds, on every back end, so that the codes agree exactly.
#pragma once

#include <cstdint>

#include "codec/absmax.h"
#include "codec/float8.h"

namespace h3 {

// value ~ e4m3 * scale; absmax as codec/absmax.h. A row with a NaN or Inf has the scale NaN, and so only NaN results.
H3_HD static inline float float8_row_scale(float absmax) {
  return f32_bits(absmax) < 0x7f800000u ? absmax / 448.0f : f32_from_bits(0x7fc00000u);
}

// What a value is multiplied by before rounding. Rows below 1e-30 count as zero: 448 / absmax must not overflow.
H3_HD static inline float float8_row_inverse(float absmax) { return absmax >= 1e-30f ? 448.0f / absmax : 0.0f; }

// A row as it is multiplied: what its codes stand for.
static inline void float8_row_round(double* row, int64_t count) {
  const float absmax = absmax_of(row, count), inverse = float8_row_inverse(absmax);
  const double scale = static_cast<double>(float8_row_scale(absmax));
  for (int64_t i = 0; i < count; ++i) {
    row[i] = static_cast<double>(e4m3_to_f32(f32_to_e4m3(static_cast<float>(row[i]) * inverse))) * scale;
  }
}

}  // namespace h3
