// Element-wise kernels, written once over vec.h and compiled per instruction set. Include from one .cpp per level.
#pragma once

#include "backends/cpu/isa/vec.h"

namespace h3::isa {
namespace {

void convert(Elem from, const void* src, Elem to, void* dst, int64_t n) {
  with_type(from, [&](auto source) {
    using S = decltype(source);
    with_type(to, [&](auto target) {
      using D = decltype(target);
      const auto* s = static_cast<const typename S::S*>(src);
      auto* d = static_cast<typename D::S*>(dst);
      span(n, [&](int64_t i, auto part) { st<D>(d + i, ld<S>(s + i, part), part); });
    });
  });
}

template <typename T, typename Body>
inline void map1(const void* x, void* y, int64_t n, Body body) {
  const auto* in = static_cast<const typename T::S*>(x);
  auto* out = static_cast<typename T::S*>(y);
  span(n, [&](int64_t i, auto part) { st<T>(out + i, body(ld<T>(in + i, part)), part); });
}

inline F gelu_tanh(F x) {  // 0.5 x (1 + tanh(u)), tanh(u) = 1 - 2 / (e^2u + 1)
  const F u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (2.0f - 2.0f / (vexp(2.0f * u) + 1.0f));
}

inline F gelu_erf(F x) {
  F out{};
  for (int i = 0; i < kLanes; ++i) out[i] = 0.5f * x[i] * (1.0f + __builtin_erff(x[i] * 0.70710678118654752f));
  return out;
}

void unary(Unary op, Elem type, const void* x, void* y, int64_t n) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    switch (op) {
      case Unary::silu: map1<T>(x, y, n, [](F v) { return vsilu(v); }); break;
      case Unary::gelu_tanh: map1<T>(x, y, n, [](F v) { return gelu_tanh(v); }); break;
      case Unary::gelu_erf: map1<T>(x, y, n, [](F v) { return gelu_erf(v); }); break;
    }
  });
}

template <typename T, typename Body>
inline void map2(const void* a, const void* b, void* y, int64_t n, Body body) {
  const auto* left = static_cast<const typename T::S*>(a);
  const auto* right = static_cast<const typename T::S*>(b);
  auto* out = static_cast<typename T::S*>(y);
  span(n, [&](int64_t i, auto part) { st<T>(out + i, body(ld<T>(left + i, part), ld<T>(right + i, part)), part); });
}

void binary(Binary op, Elem type, const void* a, const void* b, void* out, int64_t n) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    switch (op) {
      case Binary::add: map2<T>(a, b, out, n, [](F x, F y) { return x + y; }); break;
      case Binary::subtract: map2<T>(a, b, out, n, [](F x, F y) { return x - y; }); break;
      case Binary::multiply: map2<T>(a, b, out, n, [](F x, F y) { return x * y; }); break;
      case Binary::swiglu: map2<T>(a, b, out, n, [](F x, F y) { return T::saturate(y * T::round(vsilu(x))); }); break;
    }
  });
}

void accumulate(Elem from, const void* src, Elem to, void* dst, int64_t n) {
  with_type(from, [&](auto source) {
    using S = decltype(source);
    with_type(to, [&](auto target) {
      using D = decltype(target);
      const auto* s = static_cast<const typename S::S*>(src);
      auto* d = static_cast<typename D::S*>(dst);
      span(n, [&](int64_t i, auto part) { st<D>(d + i, ld<D>(d + i, part) + ld<S>(s + i, part), part); });
    });
  });
}

void scaled_add(Elem x_type, void* x, Elem y_type, const void* y, const float* scale, int64_t n) {
  with_type(x_type, [&](auto target) {
    using D = decltype(target);
    with_type(y_type, [&](auto source) {
      using S = decltype(source);
      auto* d = static_cast<typename D::S*>(x);
      const auto* s = static_cast<const typename S::S*>(y);
      span(n, [&](int64_t i, auto part) {
        const F product = ld<AsF32>(scale + i, part) * ld<S>(s + i, part);
        st<D>(d + i, ld<D>(d + i, part) + D::round(product), part);
      });
    });
  });
}

void lincomb(float c0, const float* a, float c1, const float* b, float* out, int64_t n) {
  map2<AsF32>(a, b, out, n, [=](F x, F y) { return c0 * x + c1 * y; });
}

void affine(const float* x, float s, float m, float* y, int64_t n) {
  map1<AsF32>(x, y, n, [=](F v) { return v * s + m; });
}

void affine_silu(Elem type, const void* x, float mean, float s, float b, void* y, int64_t n) {
  with_type(type, [&](auto tag) {
    map1<decltype(tag)>(x, y, n, [=](F v) { return vsilu(fma(v - mean, set1(s), set1(b))); });
  });
}

// Sums body(x) over a row in four interleaved accumulators, which hides the latency of the additions.
template <typename T, typename Body>
inline float reduce(const typename T::S* x, int64_t n, Body body) {
  F acc[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int u = 0; u < 4; ++u) acc[u] = body(T::load(x + i + u * kLanes), acc[u]);
  }
  for (; i + kLanes <= n; i += kLanes) acc[0] = body(T::load(x + i), acc[0]);
  if (i < n) {
    const Part part{n - i};
    const F next = body(ld<T>(x + i, part), acc[1]);
    // Lanes past the end keep their old sum, whatever body makes of the zeros loaded there.
    float lane[kLanes], old[kLanes];
    store(lane, next);
    store(old, acc[1]);
    for (int64_t j = part.n; j < kLanes; ++j) lane[j] = old[j];
    acc[1] = load(lane);
  }
  return hsum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

void moments(Elem type, const void* x, float shift, int64_t n, float* sum, float* squares) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    const auto* p = static_cast<const typename T::S*>(x);
    *sum = reduce<T>(p, n, [=](F v, F acc) { return acc + (v - shift); });
    *squares = reduce<T>(p, n, [=](F v, F acc) { return fma(v - shift, v - shift, acc); });
  });
}

void snake(Elem type, const void* x, float a, float inv, void* y, int64_t n) {
  with_type(type, [&](auto tag) {
    map1<decltype(tag)>(x, y, n, [=](F v) { return fma(sin_squared(v * a), set1(inv), v); });
  });
}

constexpr int64_t kSnakeBlock = 512;

// Even and odd samples of the doubled signal of positions [first - 3, first + count + 3), from the window x of
// [first - 6, first + count + 6). even[i] and odd[i] belong to position first - 3 + i.
inline void upsample_snake(const float* window, float a, float inv, const float* up, int64_t count, float* even,
                           float* odd) {
  span(count + 6, [&](int64_t i, auto part) {
    F e{}, o{};
    for (int q = 0; q < 6; ++q) {  // position m is window[i + 3]
      e = fma(ld<AsF32>(window + i + 5 - q, part), set1(up[2 * q + 1]), e);
      o = fma(ld<AsF32>(window + i + 6 - q, part), set1(up[2 * q]), o);
    }
    e *= 2.0f;
    o *= 2.0f;
    st<AsF32>(even + i, fma(sin_squared(e * a), set1(inv), e), part);
    st<AsF32>(odd + i, fma(sin_squared(o * a), set1(inv), o), part);
  });
}

template <typename T>
inline void aa_snake_row(const typename T::S* x, float a, float inv, const float* up, const float* down,
                         typename T::S* y, int64_t n) {
  float window[kSnakeBlock + 12], even[kSnakeBlock + 6], odd[kSnakeBlock + 6];
  const float head = T::get(x[0]), tail = T::get(x[n - 1]);
  float first_sample = 0;  // the doubled signal at its two ends, for the replicate padding of the second filter
  for (int64_t i = 0; i < 12; ++i) window[i] = i <= 6 ? head : (i - 6 < n ? T::get(x[i - 6]) : tail);
  for (int64_t first = 0; first < n; first += kSnakeBlock) {
    const int64_t count = n - first < kSnakeBlock ? n - first : kSnakeBlock;
    const int64_t left = n - (first + 6);  // samples of x from position first + 6 on
    const int64_t real = left < 0 ? 0 : (left < count ? left : count);
    span(real, [&](int64_t i, auto part) { st<AsF32>(window + 12 + i, ld<T>(x + first + 6 + i, part), part); });
    for (int64_t i = real; i < count; ++i) window[12 + i] = tail;
    upsample_snake(window, a, inv, up, count, even, odd);
    if (first == 0) {
      first_sample = even[3];
      for (int i = 0; i < 3; ++i) even[i] = odd[i] = first_sample;
    }
    if (first + count == n) {
      const float last_sample = odd[count + 2];
      for (int64_t i = count + 3; i < count + 6; ++i) even[i] = odd[i] = last_sample;
    }
    span(count, [&](int64_t i, auto part) {
      F sum{};
      for (int k = 0; k < 6; ++k) {  // tap 2k meets odd[m - 3 + k], tap 2k + 1 meets even[m - 2 + k]
        sum = fma(ld<AsF32>(odd + i + k, part), set1(down[2 * k]), sum);
        sum = fma(ld<AsF32>(even + i + 1 + k, part), set1(down[2 * k + 1]), sum);
      }
      st<T>(y + first + i, sum, part);
    });
    for (int i = 0; i < 12; ++i) window[i] = window[count + i];
  }
}

void aa_snake(Elem type, const void* x, float a, float inv, const float* up, const float* down, void* y, int64_t n) {
  if (n <= 0) return;
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    aa_snake_row<T>(static_cast<const typename T::S*>(x), a, inv, up, down, static_cast<typename T::S*>(y), n);
  });
}

void l1_pair(Elem type, const void* a, const void* b, int64_t n, float* difference, float* norm) {
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    const auto* p = static_cast<const typename T::S*>(a);
    const auto* q = static_cast<const typename T::S*>(b);
    F d{}, s{};
    span(n, [&](int64_t i, auto part) {
      const F u = ld<T>(p + i, part), v = ld<T>(q + i, part);  // zero past the end: adds nothing
      d = d + vabs(T::round(u - v));
      s = s + vabs(v);
    });
    *difference = hsum(d);
    *norm = hsum(s);
  });
}

bool finite(Elem type, const void* x, int64_t n) {
  bool good = true;
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    const auto* p = static_cast<const typename T::S*>(x);
    I bad{};
    span(n, [&](int64_t i, auto part) { bad |= ((U)(bits(ld<T>(p + i, part))) & 0x7f800000u) == 0x7f800000u; });
    good = !any(bad);
  });
  return good;
}

// Maximum of the magnitude bits as integers, which keeps NaN and Inf (codec/int8_row.h).
#if defined(__AVX512BW__)
// The magnitude of bf16 is its low 15 bits: no widening.
inline float absmax_bf16(const uint16_t* x, int64_t n) {
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  __m512i a = _mm512_setzero_si512(), b = a;
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    a = _mm512_max_epu16(a, _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude));
    b = _mm512_max_epu16(b, _mm512_and_si512(_mm512_loadu_si512(x + i + 32), magnitude));
  }
  for (; i < n; i += 32) {
    const __mmask32 mask = n - i >= 32 ? ~__mmask32(0) : (__mmask32(1) << (n - i)) - 1;
    a = _mm512_max_epu16(a, _mm512_and_si512(_mm512_maskz_loadu_epi16(mask, x + i), magnitude));
  }
  a = _mm512_max_epu16(a, b);
  a = _mm512_max_epu16(a, _mm512_slli_epi32(a, 16));  // the larger of two in the upper half
  return bf16_to_f32(static_cast<uint16_t>(_mm512_reduce_max_epu32(a) >> 16));
}
#endif

float absmax(Elem type, const void* x, int64_t n) {
#if defined(__AVX512BW__)
  if (type == Elem::bf16) return absmax_bf16(static_cast<const uint16_t*>(x), n);
#endif
  float best = 0;
  with_type(type, [&](auto tag) {
    using T = decltype(tag);
    const auto* p = static_cast<const typename T::S*>(x);
    I top{};
    span(n, [&](int64_t i, auto part) {
      const I magnitude = (I)(bits(ld<T>(p + i, part)) & 0x7fffffffu);
      top = magnitude > top ? magnitude : top;
    });
    int32_t most = 0;
    for (int i = 0; i < kLanes; ++i) most = top[i] > most ? top[i] : most;
    best = f32_from_bits(static_cast<uint32_t>(most));
  });
  return best;
}

}  // namespace
}  // namespace h3::isa
