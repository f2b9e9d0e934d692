// Eight-bit floats as checkpoints store them (OCP 8-bit floating point and MX scale types). Exact decoding, encoding
// with one rounding.
#pragma once

#include <cstdint>

#include "codec/scalar.h"

namespace h3 {

// 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinity, 0x7f and 0xff are NaN; largest value 448.
H3_HD static inline float e4m3_to_f32(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t exponent = (bits >> 3) & 0xfu;
  const uint32_t mantissa = bits & 0x7u;
  if (exponent == 0xfu && mantissa == 0x7u) return f32_from_bits(sign | 0x7fc00000u);
  if (exponent != 0) return f32_from_bits(sign | ((exponent + 120u) << 23) | (mantissa << 20));
  const float magnitude = static_cast<float>(mantissa) * 0.001953125f;  // 2^-9
  return f32_from_bits(sign | f32_bits(magnitude));
}

// Round to nearest even, saturating at 448; NaN stays NaN.
H3_HD static inline uint8_t f32_to_e4m3(float value) {
  const uint32_t u = f32_bits(value), a = u & 0x7fffffffu;
  const uint8_t sign = static_cast<uint8_t>(u >> 24 & 0x80u);
  if (a > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (a >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);  // 448
  if (a < 0x3c800000u) {  // below 2^-6 the spacing is 2^-9; the sum puts the code into the low bits
    const float shifted = f32_from_bits(a) * 512.0f + 12582912.0f;
    return static_cast<uint8_t>(sign | (f32_bits(shifted) & 0xfu));
  }
  const uint32_t rounded = a - (120u << 23) + 0x7ffffu + (a >> 20 & 1u);
  return static_cast<uint8_t>(sign | rounded >> 20);
}

// 1 sign, 5 exponent (bias 15), 2 mantissa bits: the upper byte of an f16.
H3_HD static inline float e5m2_to_f32(uint8_t bits) {
  return f16_to_f32(static_cast<uint16_t>(static_cast<uint16_t>(bits) << 8));
}

// A power of two, 2^(bits - 127); 0xff is NaN.
H3_HD static inline float e8m0_to_f32(uint8_t bits) {
  if (bits == 0xffu) return f32_from_bits(0x7fc00000u);
  if (bits == 0) return f32_from_bits(0x00400000u);  // 2^-127 is subnormal in f32
  return f32_from_bits(static_cast<uint32_t>(bits) << 23);
}

}  // namespace h3
