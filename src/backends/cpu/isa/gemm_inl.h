// Register-blocked matrix kernels and their packing, shared by the levels without tile registers.
//
// A block runs over whole panels: panels are zero padded, so no kernel has a tail. Every element of C is the sum over k
// in one fixed order, whatever the partition into blocks of rows and columns.
#pragma once

#include "backends/cpu/isa/vec.h"
#include "codec/int8_row.h"

namespace h3::isa {
namespace {

// ---- packing
// ---------------------------------------------------------------------------------------------------------

// panel[k / G][width][G] = put(row[r][k]) for r < count; zero elsewhere. G values of one row stay together.
template <int Width, int G, typename Out, typename Put>
inline void pack_rows(const PackSource& source, int kr, Out* panel, Put put) {
  const int64_t steps = (source.k + kr - 1) / kr * kr / G;
  with_type(source.type, [&](auto tag) {
    using T = decltype(tag);
    for (int r = 0; r < Width; ++r) {
      Out* out = panel + r * G;
      if (r >= source.count) {
        for (int64_t s = 0; s < steps; ++s) {
          for (int g = 0; g < G; ++g) out[s * Width * G + g] = Out{};
        }
        continue;
      }
      const auto* row = static_cast<const typename T::S*>(source.rows.data) + r * source.rows.stride;
      for (int64_t s = 0; s < steps; ++s) {
        for (int g = 0; g < G; ++g) {
          const int64_t k = s * G + g;
          out[s * Width * G + g] = k < source.k ? put(T::get(row[k]), r) : Out{};
        }
      }
    }
  });
}

// The same panel from k-major rows: panel[k / G][width][G] = put(row[k][c]) for c < count.
template <int Width, int G, typename Out, typename Put>
inline void pack_columns(const PackSource& source, int kr, Out* panel, Put put) {
  const int64_t padded = (source.k + kr - 1) / kr * kr;
  with_type(source.type, [&](auto tag) {
    using T = decltype(tag);
    for (int64_t k = 0; k < padded; ++k) {
      Out* out = panel + k / G * (Width * G) + k % G;
      const auto* row = static_cast<const typename T::S*>(source.rows.data) + k * source.rows.stride;
      const int64_t count = k < source.k ? source.count : 0;
      for (int64_t c = 0; c < count; ++c) out[c * G] = put(T::get(row[c]));
      for (int64_t c = count; c < Width; ++c) out[c * G] = Out{};
    }
  });
}

inline float same(float v) { return v; }
inline float to_bf16_grid(float v) { return bf16_to_f32(f32_to_bf16(v)); }

// ---- f32, and bf16 widened on load
// -----------------------------------------------------------------------------------

inline F load_b(const float* p) { return load(p); }
inline F load_b(const uint16_t* p) { return AsBf16::load(p); }

template <int MR, int NV, typename B>
inline void micro_f32(const float* a, const B* b, int64_t steps, float* c, int64_t stride, bool add) {
  F acc[MR][NV] = {};
  for (int64_t k = 0; k < steps; ++k) {
    F column[NV];
#pragma GCC unroll 16
    for (int j = 0; j < NV; ++j) column[j] = load_b(b + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const F value = set1(a[i]);
#pragma GCC unroll 16
      for (int j = 0; j < NV; ++j) acc[i][j] = fma(value, column[j], acc[i][j]);
    }
    a += MR;
    b += NV * kLanes;
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < NV; ++j) {
      float* out = c + i * stride + j * kLanes;
      store(out, add ? load(out) + acc[i][j] : acc[i][j]);
    }
  }
}

template <int MR, int NV, typename B>
void block_f32(const GemmBlock& block) {
  for (int64_t n = 0; n < block.n_panels; ++n) {
    for (int64_t m = 0; m < block.m_panels; ++m) {
      micro_f32<MR, NV>(reinterpret_cast<const float*>(block.a + m * block.a_panel),
                        reinterpret_cast<const B*>(block.b + n * block.b_panel), block.k_steps,
                        block.c + m * block.layout.m_panel + n * block.layout.n_panel, block.layout.row,
                        block.accumulate);
    }
  }
}

template <int MR>
void pack_a_f32(const PackSource& source, const float*, std::byte* panel) {
  pack_rows<MR, 1>(source, 1, reinterpret_cast<float*>(panel), [](float v, int) { return v; });
}
template <int NR>
void pack_b_f32(const PackSource& source, std::byte* panel) {
  pack_rows<NR, 1>(source, 1, reinterpret_cast<float*>(panel), [](float v, int) { return v; });
}
template <int NR>
void pack_b_rows_f32(const PackSource& source, std::byte* panel) {
  pack_columns<NR, 1>(source, 1, reinterpret_cast<float*>(panel), same);
}

template <int MR, int NV>
constexpr Gemm gemm_f32(const char* name) {
  constexpr int NR = NV * kLanes;
  return {.name = name,
          .mr = MR,
          .nr = NR,
          .kr = 1,
          .tile_rows = MR,
          .tile_cols = NR,
          .slice_steps = 256,
          .a_step = MR * 4,
          .b_step = NR * 4,
          .integer = false,
          .a_offset = 0,
          .block = block_f32<MR, NV, float>,
          .pack_a = pack_a_f32<MR>,
          .pack_b = pack_b_f32<NR>,
          .pack_b_rows = pack_b_rows_f32<NR>};
}

template <int MR>
void pack_a_widened(const PackSource& source, const float*, std::byte* panel) {
  pack_rows<MR, 1>(source, 1, reinterpret_cast<float*>(panel), [](float v, int) { return to_bf16_grid(v); });
}
template <int NR>
void pack_b_widened(const PackSource& source, std::byte* panel) {
  pack_rows<NR, 1>(source, 1, reinterpret_cast<uint16_t*>(panel), [](float v, int) { return f32_to_bf16(v); });
}
template <int NR>
void pack_b_rows_widened(const PackSource& source, std::byte* panel) {
  pack_columns<NR, 1>(source, 1, reinterpret_cast<uint16_t*>(panel), f32_to_bf16);
}

template <int MR, int NV>
constexpr Gemm gemm_bf16_widened(const char* name) {
  constexpr int NR = NV * kLanes;
  return {.name = name,
          .mr = MR,
          .nr = NR,
          .kr = 1,
          .tile_rows = MR,
          .tile_cols = NR,
          .slice_steps = 256,
          .a_step = MR * 4,
          .b_step = NR * 2,
          .integer = false,
          .a_offset = 0,
          .block = block_f32<MR, NV, uint16_t>,
          .pack_a = pack_a_widened<MR>,
          .pack_b = pack_b_widened<NR>,
          .pack_b_rows = pack_b_rows_widened<NR>};
}

// ---- int8 through 16-bit products: A is i16 pairs, B i8 pairs
// ----------------------------------------------------------

inline I multiply_pairs(int32_t a_pair, const int8_t* b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b)));
  return (I)_mm256_madd_epi16(_mm256_set1_epi32(a_pair), wide);
#else
  const int32_t low = static_cast<int16_t>(a_pair & 0xffff), high = a_pair >> 16;
  I out{};
  for (int i = 0; i < kLanes; ++i) out[i] = low * b[2 * i] + high * b[2 * i + 1];
  return out;
#endif
}

template <int MR, int NV>
inline void micro_int8(const int32_t* a, const int8_t* b, int64_t steps, int32_t* c, int64_t stride, bool add) {
  typedef int32_t IU __attribute__((vector_size(H3_LANES * 4), aligned(4), may_alias));
  I acc[MR][NV] = {};
  for (int64_t k = 0; k < steps; ++k) {
#pragma GCC unroll 16
    for (int j = 0; j < NV; ++j) {
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) acc[i][j] += multiply_pairs(a[i], b + j * 2 * kLanes);
    }
    a += MR;
    b += NV * kLanes * 2;
  }
  for (int i = 0; i < MR; ++i) {
    for (int j = 0; j < NV; ++j) {
      IU* out = reinterpret_cast<IU*>(c + i * stride + j * kLanes);
      *out = add ? (I)*out + acc[i][j] : acc[i][j];
    }
  }
}

template <int MR, int NV>
void block_int8(const GemmBlock& block) {
  for (int64_t n = 0; n < block.n_panels; ++n) {
    for (int64_t m = 0; m < block.m_panels; ++m) {
      micro_int8<MR, NV>(reinterpret_cast<const int32_t*>(block.a + m * block.a_panel),
                         reinterpret_cast<const int8_t*>(block.b + n * block.b_panel), block.k_steps,
                         reinterpret_cast<int32_t*>(block.c) + m * block.layout.m_panel + n * block.layout.n_panel,
                         block.layout.row, block.accumulate);
    }
  }
}

template <int MR>
void pack_a_int8(const PackSource& source, const float* inverse_scale, std::byte* panel) {
  pack_rows<MR, 2>(source, 2, reinterpret_cast<int16_t*>(panel),
                   [=](float v, int r) { return static_cast<int16_t>(int8_row_quantise(v, inverse_scale[r])); });
}
template <int NR>
void pack_b_int8(const PackSource& source, std::byte* panel) {
  pack_rows<NR, 2>(source, 2, reinterpret_cast<int8_t*>(panel), [](float v, int) { return static_cast<int8_t>(v); });
}
template <int NR>
void pack_b_rows_int8(const PackSource& source, std::byte* panel) {
  pack_columns<NR, 2>(source, 2, reinterpret_cast<int8_t*>(panel), [](float v) { return static_cast<int8_t>(v); });
}

// panel[k / G][NR][G] of codes; kr = G.
template <int NR, int G>
void pack_codes(const CodeSource& source, std::byte* panel) {
  const int64_t steps = (source.k + G - 1) / G, whole = source.k / G;
  for (int64_t r = 0; r < NR; ++r) {
    std::byte* out = panel + r * G;
    const int8_t* row = source.rows + r * source.stride;
    const int64_t given = r < source.count ? whole : 0;
    for (int64_t s = 0; s < given; ++s) __builtin_memcpy(out + s * NR * G, row + s * G, G);
    for (int64_t s = given; s < steps; ++s) {
      for (int64_t g = 0; g < G; ++g) {
        const int64_t k = s * G + g;
        out[s * NR * G + g] = r < source.count && k < source.k ? static_cast<std::byte>(row[k]) : std::byte{};
      }
    }
  }
}

template <int MR, int NV>
constexpr Gemm gemm_int8_pairs(const char* name) {
  constexpr int NR = NV * kLanes;
  return {.name = name,
          .mr = MR,
          .nr = NR,
          .kr = 2,
          .tile_rows = MR,
          .tile_cols = NR,
          .slice_steps = 256,
          .a_step = MR * 4,
          .b_step = NR * 2,
          .integer = true,
          .a_offset = 0,
          .block = block_int8<MR, NV>,
          .pack_a = pack_a_int8<MR>,
          .pack_b = pack_b_int8<NR>,
          .pack_b_rows = pack_b_rows_int8<NR>,
          .pack_b_codes = pack_codes<NR, 2>};
}

}  // namespace
}  // namespace h3::isa
