// One row of values as int8 with one scale: symmetric, absmax / 127. The same arithmetic, in f32 and without fused
// multiply-adds, on every back end, so that the integers agree exactly.
#pragma once

#include <cstdint>

#include "codec/absmax.h"

namespace h3 {

// value ~ q * scale; absmax as codec/absmax.h. A row with a NaN or Inf has the scale NaN, and so only NaN results.
H3_HD static inline float int8_row_scale(float absmax) {
  return f32_bits(absmax) < 0x7f800000u ? absmax / 127.0f : f32_from_bits(0x7fc00000u);
}

// What a value is multiplied by before rounding. Rows below 1e-30 count as zero: 127 / absmax must not overflow.
H3_HD static inline float int8_row_inverse(float absmax) { return absmax >= 1e-30f ? 127.0f / absmax : 0.0f; }

// Nearest even, by adding and taking away 1.5 * 2^23; |value * inverse| <= 127 (1 + 2^-22).
H3_HD static inline int8_t int8_row_quantise(float value, float inverse) {
  const float magic = 12582912.0f;
  const float shifted = value * inverse + magic;
  const int32_t q = static_cast<int32_t>(f32_bits(shifted)) - static_cast<int32_t>(f32_bits(magic));
  return static_cast<int8_t>(q > 127 ? 127 : q < -127 ? -127 : q);
}

}  // namespace h3
