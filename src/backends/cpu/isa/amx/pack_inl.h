// Packing into tile order. A row of a tile is 64 bytes of k of one row (A) or 4 bytes of k of 16 columns (B); both
// start from 64 packed bytes of k of one source row.
#pragma once

#include "backends/cpu/isa/amx/tiles.h"
#include "backends/cpu/isa/vec.h"
#include "codec/int8_row.h"

namespace h3::isa {
namespace {

inline __mmask16 first_lanes(int64_t n) {
  return n >= 16 ? __mmask16(0xffff) : __mmask16((1u << (n < 0 ? 0 : n)) - 1u);
}

inline __mmask32 first_words(int64_t n) {
  return n >= 32 ? ~__mmask32(0) : n <= 0 ? __mmask32(0) : (__mmask32(1) << n) - 1;
}

inline __m512 load16(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
inline __m512 load16(AsBf16, const uint16_t* p, int64_t n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(n), p)), 16));
}
inline __m512 load16(AsF16, const uint16_t* p, int64_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
inline __m512 load16(AsF32, const float* p, int64_t n) { return load16(p, n); }

// 32 k of one row as bf16. Subnormal values become zero, as the tile unit would treat them.
struct ToBf16 {
  static constexpr int kPer = 32;
  template <typename T>
  static __m512i pack(T tag, const typename T::S* row, int64_t n, float) {
    return (__m512i)_mm512_cvtne2ps_pbh(load16(tag, row + 16, n - 16), load16(tag, row, n));
  }
  static __m512i pack(AsBf16, const uint16_t* row, int64_t n, float) {
    return _mm512_maskz_loadu_epi16(first_words(n), row);
  }
};

// 64 k of one row as int8, in the arithmetic of codec/int8_row.h.
struct ToInt8 {
  static constexpr int kPer = 64;
  // The low byte of value + 1.5 * 2^23 is the integer, so that bf16 needs neither widening nor narrowing shuffles: even
  // and odd elements are quantised apart and merged. Nothing is clamped: a row with its own inverse stays within 127,
  // and what a row with a NaN or Inf becomes does not matter, because its scale is NaN.
  static __m512i pack(AsBf16, const uint16_t* row, int64_t n, float inverse) {
    const __m512 scale = _mm512_set1_ps(inverse), magic = _mm512_set1_ps(12582912.0f);
    const auto pairs = [&](const uint16_t* p, int64_t left) {
      const __m512i v = _mm512_maskz_loadu_epi16(first_words(left), p);
      const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
      const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(-65536)));
      const __m512i low = _mm512_castps_si512(_mm512_add_ps(_mm512_mul_ps(even, scale), magic));
      const __m512i high = _mm512_castps_si512(_mm512_add_ps(_mm512_mul_ps(odd, scale), magic));
      constexpr int kSelect = 0xca;  // mask ? low : high
      return _mm512_ternarylogic_epi32(_mm512_set1_epi32(255), low, _mm512_slli_epi32(high, 8), kSelect);
    };
    const __m512i words = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                                           24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutex2var_epi16(pairs(row, n), words, pairs(row + 32, n - 32));
  }
  template <typename T>
  static __m512i pack(T tag, const typename T::S* row, int64_t n, float inverse) {
    const __m512 magic = _mm512_set1_ps(12582912.0f);
    __m128i part[4];
    for (int i = 0; i < 4; ++i) {
      const __m512 scaled = _mm512_mul_ps(load16(tag, row + 16 * i, n - 16 * i), _mm512_set1_ps(inverse));
      const __m512i q = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(scaled, magic)), _mm512_castps_si512(magic));
      part[i] = _mm512_maskz_cvtsepi32_epi8(first_lanes(n - 16 * i), q);  // -128 is a code of weights kept as they are
    }
    __m512i out = _mm512_castsi128_si512(part[0]);
    out = _mm512_inserti32x4(out, part[1], 1);
    out = _mm512_inserti32x4(out, part[2], 2);
    return _mm512_inserti32x4(out, part[3], 3);
  }
};

template <typename To>
void pack_rows_of_a(const PackSource& source, const float* inverse_scale, std::byte* panel) {
  const int64_t steps = (source.k + To::kPer - 1) / To::kPer;
  with_type(source.type, [&](auto tag) {
    using T = decltype(tag);
    for (int r = 0; r < kMr; ++r) {
      std::byte* out = panel + r * 64;
      if (r >= source.count) {
        for (int64_t s = 0; s < steps; ++s) _mm512_store_si512(out + s * kStepBytes, _mm512_setzero_si512());
        continue;
      }
      const auto* row = static_cast<const typename T::S*>(source.rows.data) + r * source.rows.stride;
      const float inverse = inverse_scale != nullptr ? inverse_scale[r] : 1.0f;
      for (int64_t s = 0; s < steps; ++s) {
        const int64_t k = s * To::kPer;
        _mm512_store_si512(out + s * kStepBytes, To::pack(tag, row + k, source.k - k, inverse));
      }
    }
  });
}

// 16 x 16 dwords in place.
inline void transpose(__m512i v[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // v[4 g + c] holds, per 128-bit lane l, column 4 l + c of rows 4 g .. 4 g + 3.
  for (int c = 0; c < 4; ++c) {
    t[c] = _mm512_shuffle_i32x4(v[c], v[4 + c], 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(v[c], v[4 + c], 0xdd);
    t[8 + c] = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0xdd);
  }
  for (int c = 0; c < 4; ++c) {
    v[c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0x88);
    v[8 + c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0xdd);
    v[4 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0x88);
    v[12 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0xdd);
  }
}

template <typename To>
void pack_rows_of_b(const PackSource& source, std::byte* panel) {
  const int64_t steps = (source.k + To::kPer - 1) / To::kPer;
  with_type(source.type, [&](auto tag) {
    using T = decltype(tag);
    const auto* data = static_cast<const typename T::S*>(source.rows.data);
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t k = s * To::kPer;
      for (int tile = 0; tile < 2; ++tile) {
        __m512i v[16];
        for (int i = 0; i < 16; ++i) {
          const int64_t r = tile * 16 + i;
          v[i] = r < source.count ? To::pack(tag, data + r * source.rows.stride + k, source.k - k, 1.0f)
                                  : _mm512_setzero_si512();
        }
        transpose(v);
        std::byte* out = panel + s * kStepBytes + tile * kTileBytes;
        for (int i = 0; i < 16; ++i) _mm512_store_si512(out + i * 64, v[i]);
      }
    }
  });
}

void pack_codes(const CodeSource& source, std::byte* panel) {
  for (int64_t k = 0; k < source.k; k += 64, panel += kStepBytes) {
    const __mmask64 mask = source.k - k >= 64 ? ~__mmask64(0) : (__mmask64(1) << (source.k - k)) - 1;
    for (int tile = 0; tile < 2; ++tile) {
      __m512i v[16];
      for (int i = 0; i < 16; ++i) {
        const int64_t r = tile * 16 + i;
        v[i] = r < source.count ? _mm512_maskz_loadu_epi8(mask, source.rows + r * source.stride + k)
                                : _mm512_setzero_si512();
      }
      transpose(v);
      for (int i = 0; i < 16; ++i) _mm512_store_si512(panel + tile * kTileBytes + i * 64, v[i]);
    }
  }
}

// k-major rows, bf16: rows 2 i and 2 i + 1 are interleaved into row i of the tiles.
void pack_columns_bf16(const PackSource& source, std::byte* panel) {
  const int64_t steps = (source.k + 31) / 32;
  const __m512i lanes = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                         5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i upper = _mm512_add_epi16(lanes, _mm512_set1_epi16(16));
  with_type(source.type, [&](auto tag) {
    using T = decltype(tag);
    const auto* data = static_cast<const typename T::S*>(source.rows.data);
    for (int64_t k = 0; k < steps * 32; k += 2) {
      __m512i even = _mm512_setzero_si512(), odd = even;
      if (k < source.k) even = ToBf16::pack(tag, data + k * source.rows.stride, source.count, 1.0f);
      if (k + 1 < source.k) odd = ToBf16::pack(tag, data + (k + 1) * source.rows.stride, source.count, 1.0f);
      std::byte* out = panel + k / 32 * kStepBytes + k % 32 / 2 * 64;
      _mm512_store_si512(out, _mm512_permutex2var_epi16(even, lanes, odd));
      _mm512_store_si512(out + kTileBytes, _mm512_permutex2var_epi16(even, upper, odd));
    }
  });
}

// k-major rows of whole numbers, int8: only weights that are packed once come this way.
void pack_columns_int8(const PackSource& source, std::byte* panel) {
  const int64_t padded = (source.k + 63) / 64 * 64;
  with_type(source.type, [&](auto tag) {
    using T = decltype(tag);
    const auto* data = static_cast<const typename T::S*>(source.rows.data);
    for (int64_t k = 0; k < padded; ++k) {
      for (int c = 0; c < kNr; ++c) {
        const bool inside = k < source.k && c < source.count;
        const float value = inside ? T::get(data[k * source.rows.stride + c]) : 0.0f;
        panel[k / 64 * kStepBytes + c / 16 * kTileBytes + k % 64 / 4 * 64 + c % 16 * 4 + k % 4] =
            static_cast<std::byte>(static_cast<int8_t>(value));
      }
    }
  });
}

}  // namespace
}  // namespace h3::isa
