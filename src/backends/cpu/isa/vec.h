// Short vectors of f32 with the width of the instruction set that the including file is compiled for: 16 lanes with
// AVX-512, 8 with AVX2, 4 otherwise. Everything is in an anonymous namespace: an object built for one instruction set
// must not export a copy that the linker could hand to baseline code.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "backends/cpu/isa/kernels.h"
#include "codec/scalar.h"

#if defined(__AVX512F__)
#define H3_LANES 16
#elif defined(__AVX2__)
#define H3_LANES 8
#else
#define H3_LANES 4
#endif

namespace h3::isa {
namespace {

constexpr int kLanes = H3_LANES;
typedef float F __attribute__((vector_size(H3_LANES * 4)));
typedef int32_t I __attribute__((vector_size(H3_LANES * 4)));
typedef uint32_t U __attribute__((vector_size(H3_LANES * 4)));
typedef float FU __attribute__((vector_size(H3_LANES * 4), aligned(4), may_alias));  // unaligned memory
typedef uint16_t H __attribute__((vector_size(H3_LANES * 2)));
typedef uint16_t HU __attribute__((vector_size(H3_LANES * 2), aligned(2), may_alias));

// Loop positions: a whole vector, or the last `n` lanes.
struct Full {};
struct Part {
  int64_t n;
};

template <typename Body>
inline __attribute__((always_inline)) void span(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, Full{});
  if (i < n) body(i, Part{n - i});
}

inline F set1(float x) { return F{} + x; }
inline U bits(F x) { return (U)x; }
inline F from_bits(U x) { return (F)x; }
inline F to_f32(I x) { return __builtin_convertvector(x, F); }
inline I to_i32(F x) { return __builtin_convertvector(x, I); }  // truncates
inline F select(I mask, F yes, F no) { return mask ? yes : no; }
inline F vmax(F a, F b) { return a > b ? a : b; }  // b when either is NaN
inline F vmin(F a, F b) { return a < b ? a : b; }

inline F fma(F a, F b, F c) {
#if defined(__AVX512F__)
  return (F)(_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)));
#elif defined(__AVX2__)
  return (F)(_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)));
#else
  return a * b + c;
#endif
}

inline bool any(I mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)mask) != 0;
#else
  bool found = false;
  for (int i = 0; i < kLanes; ++i) found |= mask[i] != 0;
  return found;
#endif
}

inline F vabs(F x) { return from_bits(bits(x) & 0x7fffffffu); }
inline F rint(F x) { return (x + 12582912.0f) - 12582912.0f; }  // |x| < 2^22, to nearest even

inline F load(const float* p) { return *reinterpret_cast<const FU*>(p); }
inline void store(float* p, F v) { *reinterpret_cast<FU*>(p) = v; }

// Lanes in a fixed order: halves are folded, so the sum of a row does not depend on anything but its length.
inline float hsum(F v) {
  float lane[kLanes];
  store(lane, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}

inline float hmax(F v) {
  float lane[kLanes];
  store(lane, v);
  float best = lane[0];
  for (int i = 1; i < kLanes; ++i) best = lane[i] > best ? lane[i] : best;
  return best;
}

inline F widen_bf16(H h) { return from_bits(__builtin_convertvector(h, U) << 16); }

inline U round_bf16_bits(F x) {
  const U u = bits(x);
  const U rounded = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  return (x == x) ? rounded : ((u | 0x400000u) & 0xffff0000u);
}
inline F round_bf16(F x) { return from_bits(round_bf16_bits(x)); }
inline H narrow_bf16(F x) { return __builtin_convertvector(round_bf16_bits(x) >> 16, H); }

inline F widen_f16(H h) {
#if defined(__AVX512F__)
  return (F)(_mm512_cvtph_ps((__m256i)(h)));
#elif defined(__AVX2__)
  return (F)(_mm256_cvtph_ps((__m128i)(h)));
#else
  F out{};
  for (int i = 0; i < kLanes; ++i) out[i] = f16_to_f32(h[i]);
  return out;
#endif
}

inline H narrow_f16(F x) {
#if defined(__AVX512F__)
  return (H)(_mm512_cvtps_ph((__m512)(x), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  return (H)(_mm256_cvtps_ph((__m256)(x), _MM_FROUND_TO_NEAREST_INT));
#else
  H out{};
  for (int i = 0; i < kLanes; ++i) out[i] = f32_to_f16(x[i]);
  return out;
#endif
}

// Element types. S is the stored scalar; round() is the rounding of the type without leaving f32.
struct AsF32 {
  using S = float;
  static F load(const S* p) { return *reinterpret_cast<const FU*>(p); }
  static void store(S* p, F v) { *reinterpret_cast<FU*>(p) = v; }
  static F round(F v) { return v; }
  static F saturate(F v) { return v; }
  static float get(S v) { return v; }
  static S put(float v) { return v; }
};

struct AsBf16 {
  using S = uint16_t;
  static F load(const S* p) { return widen_bf16(*reinterpret_cast<const HU*>(p)); }
  static void store(S* p, F v) { *reinterpret_cast<HU*>(p) = narrow_bf16(v); }
  static F round(F v) { return round_bf16(v); }
  static F saturate(F v) { return v; }
  static float get(S v) { return bf16_to_f32(v); }
  static S put(float v) { return f32_to_bf16(v); }
};

struct AsF16 {
  using S = uint16_t;
  static F load(const S* p) { return widen_f16(*reinterpret_cast<const HU*>(p)); }
  static void store(S* p, F v) { *reinterpret_cast<HU*>(p) = narrow_f16(v); }
  static F round(F v) { return widen_f16(narrow_f16(v)); }
  static F saturate(F v) {  // NaN stays
    v = v > set1(65504.0f) ? set1(65504.0f) : v;
    return v < set1(-65504.0f) ? set1(-65504.0f) : v;
  }
  static float get(S v) { return f16_to_f32(v); }
  static S put(float v) { return f32_to_f16(v); }
};

template <typename T>
inline F ld(const typename T::S* p, Full) {
  return T::load(p);
}
template <typename T>
inline F ld(const typename T::S* p, Part part) {
  typename T::S lane[kLanes] = {};
  for (int64_t i = 0; i < part.n; ++i) lane[i] = p[i];
  return T::load(lane);
}
template <typename T>
inline void st(typename T::S* p, F v, Full) {
  T::store(p, v);
}
template <typename T>
inline void st(typename T::S* p, F v, Part part) {
  typename T::S lane[kLanes];
  T::store(lane, v);
  for (int64_t i = 0; i < part.n; ++i) p[i] = lane[i];
}

// Lanes at and beyond the end replaced by `filler`, for reductions.
inline F keep(F v, float, Full) { return v; }
inline F keep(F v, float filler, Part part) {
  float lane[kLanes];
  store(lane, v);
  for (int64_t i = part.n; i < kLanes; ++i) lane[i] = filler;
  return load(lane);
}

// Calls body(tag) with the element type of `type`.
template <typename Body>
inline void with_type(Elem type, Body body) {
  switch (type) {
    case Elem::f32: body(AsF32{}); break;
    case Elem::bf16: body(AsBf16{}); break;
    case Elem::f16: body(AsF16{}); break;
  }
}

// 2^n for n in [-252, 254], in two factors so that subnormal and overflowing results round once, at the end.
inline F scale_by_pow2(F x, F n) {
  const I whole = to_i32(n);
  const I first = whole >> 1, second = whole - first;
  const F a = from_bits(((U)first + 127u) << 23);
  const F b = from_bits(((U)second + 127u) << 23);
  return x * a * b;
}

// e^x. Cody-Waite reduction by ln 2 and the degree-6 Taylor-like polynomial of Cephes expf; at most 2 ulp (1 ulp with
// FMA) over the whole range, exact at 0, overflow to Inf, NaN kept.
inline F vexp(F x) {
  F t = x > set1(89.0f) ? set1(89.0f) : x;  // NaN compares false and stays
  t = t < set1(-105.0f) ? set1(-105.0f) : t;
  const F n = rint(t * 1.44269504088896341f);
  F r = fma(n, set1(-0.693359375f), t);
  r = fma(n, set1(2.12194440e-4f), r);
  F p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r + 1.0f);
  const F bounded = (n == n) ? n : F{};  // an integer conversion of NaN is undefined
  return scale_by_pow2(p, bounded);
}

// sin(x)^2, which has period pi. Reduction by pi in three FMA steps while |x| <= 30000, in double beyond. Absolute
// error at most 2.5e-7 for every finite x up to 2^40; NaN for Inf and NaN.
inline F sin_squared(F x) {
  const F n = rint(x * 0.318309886183790672f);
  F r = fma(n, set1(-3.140625f), x);
  r = fma(n, set1(-9.67502593994140625e-4f), r);
  r = fma(n, set1(-1.509957990978376432e-7f), r);
  const I wide = vabs(x) > set1(30000.0f);
  if (__builtin_expect(any(wide), 0)) {
    for (int i = 0; i < kLanes; ++i) {
      const double whole = static_cast<double>(x[i]) * 0.318309886183790671538;
      const double nearest = (whole + 6755399441055744.0) - 6755399441055744.0;
      const double rest =
          static_cast<double>(x[i]) - nearest * 3.14159265358979311600 - nearest * 1.2246467991473532e-16;
      if (wide[i]) r[i] = static_cast<float>(rest);
    }
  }
  const F z = r * r;
  F p = set1(-2.5052108385e-8f);
  p = fma(p, z, set1(2.7557319224e-6f));
  p = fma(p, z, set1(-1.9841269841e-4f));
  p = fma(p, z, set1(8.3333333333e-3f));
  p = fma(p, z, set1(-1.6666666667e-1f));
  const F s = fma(p * z, r, r);
  return s * s;
}

inline F vsilu(F x) { return x / (1.0f + vexp(-x)); }

}  // namespace
}  // namespace h3::isa
