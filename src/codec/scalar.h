// Scalar formats narrower than float: bit-exact conversions shared by every back end. Includes <cstdint> only.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define H3_HD __host__ __device__
#else
#define H3_HD
#endif

namespace h3 {

H3_HD static inline uint32_t f32_bits(float value) {
  union { float f; uint32_t u; } pun = {value};
  return pun.u;
}

H3_HD static inline float f32_from_bits(uint32_t bits) {
  union { uint32_t u; float f; } pun = {bits};
  return pun.f;
}

H3_HD static inline float bf16_to_f32(uint16_t bits) { return f32_from_bits(static_cast<uint32_t>(bits) << 16); }

// Round to nearest even; NaN stays NaN (quiet).
H3_HD static inline uint16_t f32_to_bf16(float value) {
  const uint32_t u = f32_bits(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

H3_HD static inline float f16_to_f32(uint16_t bits) {
#ifdef __CUDA_ARCH__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) return f32_from_bits(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return f32_from_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  if (mantissa == 0) return f32_from_bits(sign);
  uint32_t e = 113u;
  while ((mantissa & 0x400u) == 0) {
    mantissa <<= 1;
    --e;
  }
  return f32_from_bits(sign | (e << 23) | ((mantissa & 0x3ffu) << 13));
#endif
}

// Round to nearest even; overflow becomes infinity; NaN stays NaN (quiet).
H3_HD static inline uint16_t f32_to_f16(float value) {
  const uint32_t u = f32_bits(value);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (a >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (a < 0x33000001u) return sign;  // at most half of the smallest subnormal
  const uint32_t exponent = a >> 23;
  if (exponent < 113u) {
    const uint32_t mantissa = (a & 0x7fffffu) | 0x800000u;
    const uint32_t shift = 126u - exponent;
    uint32_t half = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1u);
    const uint32_t middle = 1u << (shift - 1u);
    if (rest > middle || (rest == middle && (half & 1u))) ++half;
    return static_cast<uint16_t>(sign | half);
  }
  const uint32_t rounded = a - (112u << 23) + 0xfffu + ((a >> 13) & 1u);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

}  // namespace h3
