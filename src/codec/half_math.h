// Powers and logarithms of half floats, the same bits everywhere: scales of the CMF formats are stored as logarithms,
// so the functions decide what a checkpoint means. They reproduce the platform that the format was defined on
// (glibc 2.36), which differs from the correctly rounded result for 42 and 21 arguments (spec formats A.5, A.7). No
// math library: own series in double, whose error of a few 2^-53 is far from any rounding boundary of the finite set of
// arguments.
#pragma once

#include <cstdint>

#include "codec/scalar.h"

namespace h3 {

// 2^e for -1022 <= e <= 1023.
H3_HD static inline double power_of_two(int e) {
  union {
    uint64_t u;
    double d;
  } pun = {static_cast<uint64_t>(e + 1023) << 52};
  return pun.d;
}

// 2^f for 0 <= f < 1.
H3_HD static inline double exp2_fraction(double f) {
  const double x = (f - 0.5) * 0.693147180559945309417232121458;  // |x| <= 0.3466: x^15 / 15! < 1e-19
  double sum = 1.0;
  for (int k = 15; k >= 1; --k) sum = 1.0 + sum * x / k;
  return sum * 1.41421356237309504880168872421;
}

// The arguments at which the reference's exp2f is one ulp above the correctly rounded value.
H3_HD static inline bool exp2_is_high(uint16_t bits, double fraction) {
  if (fraction == 0.0859375 || fraction == 0.66845703125) return true;
  switch (bits) {
    case 0x9f35:
    case 0x9df8:
    case 0x1bf5:
    case 0x21a6:
    case 0x22d3:
    case 0x3263:
    case 0x3352:
    case 0x3749: return true;
    default: return false;
  }
}

// exp2 of an f16 given by its bits, as f32.
H3_HD static inline float exp2_of_half(uint16_t bits) {
  const float value = f16_to_f32(bits);
  if ((bits & 0x7c00u) == 0x7c00u) return bits == 0xfc00u ? 0.0f : value;  // infinities and NaN
  int whole = static_cast<int>(value);
  if (static_cast<float>(whole) > value) --whole;
  if (whole >= 128) return f32_from_bits(0x7f800000u);
  if (whole < -151) return 0.0f;
  const double fraction = static_cast<double>(value) - whole;
  const float result = static_cast<float>(exp2_fraction(fraction) * power_of_two(whole));
  return exp2_is_high(bits, fraction) ? f32_from_bits(f32_bits(result) + 1u) : result;
}

// log2 of a positive normal f16 given by its bits, as f32.
static inline float log2_of_half(uint16_t bits) {
  struct Exception {
    uint16_t argument;
    uint32_t result;
  };
  static constexpr Exception kExceptions[] = {
      {0x361c, 0xbfb1c9f1}, {0x3a5e, 0xbea89fbf}, {0x3b5f, 0xbdf1e994}, {0x3bc9, 0xbd20ddc8}, {0x3bdd, 0xbccbb91e},
      {0x3bde, 0xbcc5da7c}, {0x3bdf, 0xbcbffc99}, {0x3bed, 0xbc5c502d}, {0x3bf6, 0xbbe76587}, {0x3bfb, 0xbb671d0a},
      {0x3c07, 0x3c210835}, {0x3c16, 0x3cfb39a6}, {0x3c19, 0x3d0e895c}, {0x3c21, 0x3d3b6e7b}, {0x3ca7, 0x3e5f304d},
      {0x3d16, 0x3eb16a40}, {0x3d9a, 0x3ef8be9e}, {0x3e12, 0x3f1a0da7}, {0x3e97, 0x3f3861ee}, {0x3f18, 0x3f5398ae},
      {0x421c, 0x3fce360f}};
  for (const Exception& e : kExceptions) {
    if (e.argument == bits) return f32_from_bits(e.result);
  }
  int exponent = (bits >> 10) - 15;
  double mantissa = static_cast<double>(1024 + (bits & 0x3ff)) / 1024;
  if (mantissa > 1.41421356237309504880) {
    mantissa /= 2;
    ++exponent;
  }
  const double s = (mantissa - 1) / (mantissa + 1), square = s * s;  // |s| <= 0.1716
  double sum = 0;
  for (int k = 27; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return static_cast<float>(exponent + s * sum * 2.88539008177792681471984936200);  // 2 / ln 2
}

// f16 as the CMF writers round it: to nearest, ties to even for normal results, away from zero for subnormal ones
// (spec formats A.4).
static inline uint16_t f32_to_f16_cmf(float value) {
  const uint32_t u = f32_bits(value), a = u & 0x7fffffffu;
  if (a >= 0x38800000u) return f32_to_f16(value);  // normal results, infinities, NaN
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  if (a < 0x33000000u) return sign;  // below half of the smallest subnormal
  const uint32_t mantissa = (a & 0x7fffffu) | 0x800000u, shift = 126u - (a >> 23);
  return static_cast<uint16_t>(sign | ((mantissa >> shift) + ((mantissa >> (shift - 1u)) & 1u)));
}

// A stored scale: at least the smallest normal f16.
static inline uint16_t scale_to_f16_cmf(float value) {
  const uint16_t bits = f32_to_f16_cmf(value);
  return f16_to_f32(bits) > 0x1p-14f ? bits : static_cast<uint16_t>(0x0400);
}

}  // namespace h3
