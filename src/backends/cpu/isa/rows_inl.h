// Row kernels: norms, gates, modulation, rotary embedding, softmax tiles and the epilogue of matrix products.
#pragma once

#include "backends/cpu/isa/pointwise_inl.h"

namespace h3::isa {
namespace {

template <typename T>
inline const typename T::S* row_of(const ConstRows& m, int64_t r) {
  return static_cast<const typename T::S*>(m.data) + r * m.stride;
}
template <typename T>
inline typename T::S* row_of(const Rows& m, int64_t r) {
  return static_cast<typename T::S*>(m.data) + r * m.stride;
}

template <typename T>
inline float inverse_rms(const typename T::S* x, int64_t n, float eps) {
  const float squares = reduce<T>(x, n, [](F v, F acc) { return fma(v, v, acc); });
  return 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps);
}

template <typename X, typename T>
inline void rms_row(const NormArgs& args, const typename X::S* x, typename T::S* y) {
  const float inv = inverse_rms<X>(x, args.cols, args.eps);
  span(args.cols, [&](int64_t i, auto part) {
    F v = ld<X>(x + i, part) * inv;
    if (args.twice) v = T::round(v);
    if (args.w != nullptr) v *= ld<AsF32>(args.w + i, part);
    st<T>(y + i, v, part);
  });
}

void rms_norm(const NormArgs& args, Span rows) {
  with_type(args.x_type, [&](auto source) {
    with_type(args.type, [&](auto target) {
      using X = decltype(source);
      using T = decltype(target);
      for (int64_t r = rows.begin; r < rows.end; ++r) rms_row<X, T>(args, row_of<X>(args.x, r), row_of<T>(args.y, r));
    });
  });
}

template <typename X, typename T>
inline void layer_norm_row(const NormArgs& args, const typename X::S* x, typename T::S* y) {
  const int64_t n = args.cols;
  const float mean = reduce<X>(x, n, [](F v, F acc) { return acc + v; }) / static_cast<float>(n);
  const float squares = reduce<X>(x, n, [=](F v, F acc) { return fma(v - mean, v - mean, acc); });
  const float inv = 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + args.eps);
  span(n, [&](int64_t i, auto part) {
    F v = (ld<X>(x + i, part) - mean) * inv;
    if (args.w != nullptr) v *= ld<AsF32>(args.w + i, part);
    if (args.b != nullptr) v += ld<AsF32>(args.b + i, part);
    st<T>(y + i, v, part);
  });
}

void layer_norm(const NormArgs& args, Span rows) {
  with_type(args.x_type, [&](auto source) {
    with_type(args.type, [&](auto target) {
      using X = decltype(source);
      using T = decltype(target);
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        layer_norm_row<X, T>(args, row_of<X>(args.x, r), row_of<T>(args.y, r));
      }
    });
  });
}

template <typename X, typename T>
inline void gate_norm_row(const GateNormArgs& args, int64_t r) {
  const NormArgs& norm = args.norm;
  const auto* x = row_of<X>(norm.x, r);
  if (args.gate.data != nullptr) {
    const auto* gate = row_of<X>(args.gate, args.gate_ids[r]);
    const auto* branch = row_of<X>(args.branch, r);
    auto* out = row_of<X>(args.residual, r);
    span(norm.cols, [&](int64_t i, auto part) {
      const F step = X::round(ld<X>(gate + i, part) * ld<X>(branch + i, part));
      st<X>(out + i, ld<X>(x + i, part) + step, part);
    });
    x = out;
  }
  if (!args.has_norm) return;
  const float inv = inverse_rms<X>(x, norm.cols, norm.eps);
  const auto* shift = row_of<T>(args.shift, args.ids[r]);
  const auto* scale = row_of<T>(args.scale, args.ids[r]);
  auto* y = row_of<T>(norm.y, r);
  span(norm.cols, [&](int64_t i, auto part) {
    F v = ld<X>(x + i, part) * inv;
    if (norm.w != nullptr) v *= ld<AsF32>(norm.w + i, part);
    v = T::round(T::round(v) * T::round(1.0f + ld<T>(scale + i, part)));
    st<T>(y + i, v + ld<T>(shift + i, part), part);
  });
}

void gate_norm(const GateNormArgs& args, Span rows) {
  with_type(args.norm.type, [&](auto tag) {
    using T = decltype(tag);
    if (args.norm.x_type == args.norm.type) {
      for (int64_t r = rows.begin; r < rows.end; ++r) gate_norm_row<T, T>(args, r);
    } else {
      for (int64_t r = rows.begin; r < rows.end; ++r) gate_norm_row<AsF32, T>(args, r);
    }
  });
}

template <typename T>
inline void rotate(const HeadArgs& args, typename T::S* x, const float* cos, const float* sin) {
  const int64_t pairs = args.pairs;
  span(pairs, [&](int64_t i, auto part) {
    const F low = ld<T>(x + i, part), high = ld<T>(x + pairs + i, part);
    F c = ld<AsF32>(cos + i, part), s = ld<AsF32>(sin + i, part);
    if (args.rope_once) {
      st<T>(x + i, low * c - high * s, part);
      st<T>(x + pairs + i, high * c + low * s, part);
    } else {
      c = T::round(c);
      s = T::round(s);
      st<T>(x + i, T::round(low * c) - T::round(high * s), part);
      st<T>(x + pairs + i, T::round(high * c) + T::round(low * s), part);
    }
  });
}

void head_norm_rope(const HeadArgs& args, Span rows) {
  with_type(args.type, [&](auto tag) {
    using T = decltype(tag);
    NormArgs norm;
    norm.cols = args.dim;
    norm.w = args.w;
    norm.eps = args.eps;
    norm.twice = args.twice;
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      for (int64_t h = 0; h < args.heads; ++h) {
        auto* x = static_cast<typename T::S*>(args.x) + r * args.row_stride + h * args.head_stride;
        if (args.norm) rms_row<T, T>(norm, x, x);
        if (args.pairs > 0) rotate<T>(args, x, args.cos + r * args.cos_stride, args.sin + r * args.sin_stride);
      }
    }
  });
}

template <typename T>
inline void softmax_row(const SoftmaxArgs& args, int64_t r) {
  float* s = args.scores + r * args.stride;
  int64_t valid = args.valid;
  if (args.causal) {
    const int64_t seen = args.first_query + r + 1 - args.first_key;
    valid = seen < valid ? (seen < 0 ? 0 : seen) : valid;
  }
  const float before = args.maximum[r];
  F top = set1(before);
  I nan{};
  span(valid, [&](int64_t i, auto part) {
    const F v = ld<AsF32>(s + i, part) * args.scale;
    st<AsF32>(s + i, v, part);
    top = vmax(keep(v, before, part), top);
    nan |= v != v;
  });
  const float now = any(nan) ? __builtin_nanf("") : hmax(top);
  // A row that has seen no key yet has maximum -Inf: nothing to rescale, and no exp(-Inf + Inf).
  const bool moved = !(now == before);
  float factor = 1;
  if (moved) {
    factor = before == -__builtin_inff() ? 0.0f : vexp(set1(before - now))[0];
    float* out = args.output + r * args.output_stride;
    span(args.output_cols, [&](int64_t i, auto part) { st<AsF32>(out + i, ld<AsF32>(out + i, part) * factor, part); });
    args.maximum[r] = now;
  }
  F sum{};
  span(valid, [&](int64_t i, auto part) {
    const F p = vexp(ld<AsF32>(s + i, part) - now);
    sum += keep(p, 0.0f, part);
    st<AsF32>(s + i, T::round(p), part);
  });
  for (int64_t i = valid; i < args.cols; ++i) s[i] = 0;
  args.total[r] = args.total[r] * factor + hsum(sum);
}

void softmax(const SoftmaxArgs& args) {
  with_type(args.type, [&](auto tag) {
    for (int64_t r = 0; r < args.rows; ++r) softmax_row<decltype(tag)>(args, r);
  });
}

// Columns [i, i + lanes) of row r, from the sums at c.
template <typename Tag>
inline __attribute__((always_inline)) F finish(const StoreArgs& args, int64_t r, int64_t i, const float* c,
                                               float factor, Tag part) {
  F v = ld<AsF32>(c, part);
  if (args.row_scale != nullptr) {
    I whole = (I)v;
    if (args.col_offset != nullptr) {
      whole -= (I)ld<AsF32>(reinterpret_cast<const float*>(args.col_offset) + i, part);
    }
    v = to_f32(whole) * (ld<AsF32>(args.col_scale + i, part) * args.row_scale[r]);
  }
  if (args.col_bias != nullptr) v += ld<AsF32>(args.col_bias + i, part);
  if (args.row_bias != nullptr) v += args.row_bias[r];
  if (args.divide != nullptr) v *= factor;
  return v;
}

#if defined(__AVX512BF16__)
// 32 columns as one line of bf16. The instruction rounds to nearest even and turns subnormal results into zero.
inline void store_line(const StoreArgs& args, int64_t r, int64_t i, const float* low, const float* high, float factor,
                       uint16_t* y) {
  const F a = finish(args, r, i, low, factor, Full{}), b = finish(args, r, i + 16, high, factor, Full{});
  const __m512i line = (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
  if (args.stream && reinterpret_cast<uintptr_t>(y + i) % 64 == 0) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(y + i), line);
  } else {
    _mm512_storeu_si512(y + i, line);
  }
}
#endif

template <typename T>
inline void store_row(const StoreArgs& args, int64_t r, const float* row) {
  typename T::S* y = row_of<T>(args.y, r);
  const float factor = args.divide != nullptr ? 1.0f / args.divide[r] : 1.0f;
  for (int64_t first = 0; first < args.cols; first += args.nr, row += args.layout.n_panel) {
    const int64_t cols = args.cols - first < args.nr ? args.cols - first : args.nr;
#if defined(__AVX512BF16__)
    if constexpr (__is_same(T, AsBf16)) {
      if (cols == 32 && args.add_scale == nullptr) {
        store_line(args, r, first, row, row + (args.tile_cols == 16 ? args.layout.tile_right : 16), factor, y);
        continue;
      }
    }
#endif
    const float* tile = row;
    for (int64_t j = 0; j < cols; j += args.tile_cols, tile += args.layout.tile_right) {
      const int64_t n = cols - j < args.tile_cols ? cols - j : args.tile_cols, i0 = first + j;
      span(n, [&](int64_t i, auto part) {
        F value = finish(args, r, i0 + i, tile + i, factor, part);
        if (args.add_scale != nullptr) value = ld<T>(y + i0 + i, part) + value * *args.add_scale;
        st<T>(y + i0 + i, value, part);
      });
    }
  }
}

void store(const StoreArgs& args) {
  with_type(args.type, [&](auto tag) {
    int64_t r = 0;
    for (const float* panel = args.c; r < args.rows; panel += args.layout.m_panel) {
      const float* tile = panel;
      for (int down = 0; down < args.mr / args.tile_rows; ++down, tile += args.layout.tile_down) {
        for (int in = 0; in < args.tile_rows && r < args.rows; ++in, ++r) {
          store_row<decltype(tag)>(args, r, tile + in * args.layout.row);
        }
      }
    }
  });
#if defined(__AVX512F__)
  if (args.stream) _mm_sfence();
#endif
}

constexpr Pointwise kPointwise = {
    .convert = convert,
    .unary = unary,
    .binary = binary,
    .accumulate = accumulate,
    .scaled_add = scaled_add,
    .lincomb = lincomb,
    .affine = affine,
    .affine_silu = affine_silu,
    .moments = moments,
    .snake = snake,
    .aa_snake = aa_snake,
    .l1_pair = l1_pair,
    .finite = finite,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .gate_norm = gate_norm,
    .head_norm_rope = head_norm_rope,
};

}  // namespace
}  // namespace h3::isa
