// Rows of packed weights as f32, and as int8 in the arithmetic of codec/int8_row.h: bit for bit what decoding and
// quantising the row gives. Formats with sixteen or fewer values per scale quantise each value once into a table of
// sixteen bytes and look the codes up; the others decode eight columns at a time.
#pragma once

#include "backends/cpu/isa/vec.h"
#include "codec/int8_row.h"
#include "codec/nvfp4.h"
#include "codec/plain.h"
#include "codec/q2_k.h"
#include "codec/q2tp.h"
#include "codec/q3_k.h"
#include "codec/q4_0.h"
#include "codec/q4_1.h"
#include "codec/q4_k.h"
#include "codec/q4tp.h"
#include "codec/q5_0.h"
#include "codec/q5_1.h"
#include "codec/q5_k.h"
#include "codec/q6_k.h"
#include "codec/rotation.h"

namespace h3::isa {
namespace {

typedef int8_t Codes __attribute__((vector_size(H3_LANES)));
typedef int8_t CodesU __attribute__((vector_size(H3_LANES), aligned(1), may_alias));

// n is a multiple of the lanes.
inline void quantise(const float* values, int n, float inverse, int8_t* out) {
  const F magic = set1(12582912.0f);
  for (int i = 0; i < n; i += kLanes) {
    I q = (I)(bits(load(values + i) * inverse + magic) - bits(magic));
    q = q > 127 ? I{} + 127 : q;
    q = q < -127 ? I{} - 127 : q;
    *reinterpret_cast<CodesU*>(out + i) = __builtin_convertvector(q, Codes);
  }
}

// ---- any format, eight columns at a time
// ---------------------------------------------------------------------------------

inline void no_rungs(const PackedRows&, int64_t, float*) {}

using Begin = void (*)(const PackedRows&, int64_t, float*);
using Decode = void (*)(const PackedRows&, const float*, int64_t, int64_t, int, float*);

template <Begin Fill, Decode Eight>
void floats(const PackedRows& m, int64_t row, float* out) {
  float rungs[32];
  Fill(m, row, rungs);
  int64_t col = 0;
  for (; col + 8 <= m.cols; col += 8) Eight(m, rungs, row, col, 8, out + col);
  if (col < m.cols) Eight(m, rungs, row, col, static_cast<int>(m.cols - col), out + col);
}

template <Begin Fill, Decode Eight>
void codes(const PackedRows& m, int64_t row, float inverse, int8_t* out) {
  constexpr int kPiece = 64;
  float rungs[32], values[kPiece] = {};
  Fill(m, row, rungs);
  for (int64_t first = 0; first < m.cols; first += kPiece) {
    const int64_t left = m.cols - first < kPiece ? m.cols - first : kPiece;
    int64_t i = 0;
    for (; i + 8 <= left; i += 8) Eight(m, rungs, row, first + i, 8, values + i);
    if (i < left) Eight(m, rungs, row, first + i, static_cast<int>(left - i), values + i);
    if (left == kPiece) {
      quantise(values, kPiece, inverse, out + first);
    } else {
      for (int64_t k = 0; k < left; ++k) out[first + k] = int8_row_quantise(values[k], inverse);
    }
  }
}

// ---- tables of codes
// ---------------------------------------------------------------------------------------------------

struct alignas(16) Table {
  int8_t code[16];
};

// codes of (level + first) * scale - least, level = 0 .. 15
inline Table table_of(float first, float scale, float least, float inverse) {
  alignas(64) float values[16];
  for (int i = 0; i < 16; ++i) values[i] = (static_cast<float>(i) + first) * scale - least;
  Table table;
  quantise(values, 16, inverse, table.code);
  return table;
}

// Of 16 bytes: out[2 i] = table[low nibble of i], out[2 i + 1] = table[high nibble of i].
inline void look_up_pairs(const Table& table, const uint8_t* packed, int8_t* out) {
#if defined(__AVX2__)
  const __m128i t = _mm_load_si128(reinterpret_cast<const __m128i*>(table.code)), mask = _mm_set1_epi8(15);
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed));
  const __m128i low = _mm_shuffle_epi8(t, _mm_and_si128(bytes, mask));
  const __m128i high = _mm_shuffle_epi8(t, _mm_and_si128(_mm_srli_epi16(bytes, 4), mask));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_unpacklo_epi8(low, high));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16), _mm_unpackhi_epi8(low, high));
#else
  for (int i = 0; i < 16; ++i) {
    out[2 * i] = table.code[packed[i] & 15];
    out[2 * i + 1] = table.code[packed[i] >> 4];
  }
#endif
}

// Of 32 bytes: out[i] = low_table[low nibble of i], out[32 + i] = high_table[high nibble of i].
inline void look_up_halves(const Table& low_table, const Table& high_table, const uint8_t* packed, int8_t* out) {
#if defined(__AVX2__)
  const __m256i mask = _mm256_set1_epi8(15);
  const __m256i low = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(low_table.code)));
  const __m256i high = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(high_table.code)));
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_shuffle_epi8(low, _mm256_and_si256(bytes, mask)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32),
                      _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask)));
#else
  for (int i = 0; i < 32; ++i) {
    out[i] = low_table.code[packed[i] & 15];
    out[32 + i] = high_table.code[packed[i] >> 4];
  }
#endif
}

// Of 8 bytes of four two-bit fields each: out[4 i + j] = table[field j of i].
inline void look_up_fields(const Table& table, const uint8_t* packed, int8_t* out) {
#if defined(__AVX2__)
  const __m128i t = _mm_load_si128(reinterpret_cast<const __m128i*>(table.code)), mask = _mm_set1_epi8(15);
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed));
  // A nibble holds two fields: one table answers for the lower, one for the upper.
  const __m128i lower = _mm_shuffle_epi8(t, _mm_setr_epi8(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3));
  const __m128i upper = _mm_shuffle_epi8(t, _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3));
  const __m128i first = _mm_and_si128(bytes, mask), second = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
  const __m128i even = _mm_unpacklo_epi8(_mm_shuffle_epi8(lower, first), _mm_shuffle_epi8(upper, first));
  const __m128i odd = _mm_unpacklo_epi8(_mm_shuffle_epi8(lower, second), _mm_shuffle_epi8(upper, second));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_unpacklo_epi16(even, odd));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 16), _mm_unpackhi_epi16(even, odd));
#else
  for (int i = 0; i < 32; ++i) out[i] = table.code[packed[i / 4] >> (2 * (i % 4)) & 3];
#endif
}

void q4tp_codes(const PackedRows& m, int64_t row, float inverse, int8_t* out) {
  float rungs[32];
  Table tables[32];
  q4tp_begin(m, row, rungs);
  for (int r = 0; r < 32; ++r) tables[r] = table_of(-8, rungs[r], 0, inverse);
  const int64_t groups = m.cols / 32;
  const uint8_t* packed = m.data + row * groups * 16;
  for (int64_t g = 0; g < groups; ++g) look_up_pairs(tables[rung_of(m, row, g, 16)], packed + 16 * g, out + 32 * g);
}

void q2tp_codes(const PackedRows& m, int64_t row, float inverse, int8_t* out) {
  float rungs[32];
  Table tables[32];
  q2tp_begin(m, row, rungs);
  for (int r = 0; r < 32; ++r) tables[r] = table_of(-1.5f, rungs[r], 0, inverse);
  const int64_t groups = m.cols / 32;
  const uint8_t* packed = m.data + row * groups * 8;
  for (int64_t g = 0; g < groups; ++g) look_up_fields(tables[rung_of(m, row, g, 8)], packed + 8 * g, out + 32 * g);
}

void q4_k_codes(const PackedRows& m, int64_t row, float inverse, int8_t* out) {
  const uint8_t* block = m.data + row * m.cols / 256 * 144;
  for (int64_t b = 0; b < m.cols / 256; ++b, block += 144, out += 256) {
    const float d = load_f16(block), least = load_f16(block + 2);
    for (int run = 0; run < 8; run += 2) {
      Table tables[2];
      for (int i = 0; i < 2; ++i) {
        const KPair pair = k_pair(block + 4, run + i);
        tables[i] = table_of(0, d * static_cast<float>(pair.scale), least * static_cast<float>(pair.least), inverse);
      }
      look_up_halves(tables[0], tables[1], block + 16 + run / 2 * 32, out + 32 * run);
    }
  }
}

// ---- eight bits and a scale
// ---------------------------------------------------------------------------------------------

inline void signed_bytes(const uint8_t* codes, int64_t count, float scale, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(static_cast<int8_t>(codes[i])) * scale;
}

void q8_row_floats(const PackedRows& m, int64_t row, float* out) {
  signed_bytes(m.data + row * m.cols, m.cols, load_f16(m.data + m.rows * m.cols + 2 * row), out);
}

void q8_2f_floats(const PackedRows& m, int64_t row, float* out) {
  const uint8_t* scales = m.data + m.rows * m.cols;
  const uint8_t* columns = scales + 2 * m.rows;
  signed_bytes(m.data + row * m.cols, m.cols, load_f16(scales + 2 * row), out);
  int64_t col = 0;
  for (; col + kLanes <= m.cols; col += kLanes) {
    H halves;
    __builtin_memcpy(&halves, columns + 2 * col, sizeof halves);
    store(out + col, load(out + col) * widen_f16(halves));
  }
  for (; col < m.cols; ++col) out[col] *= load_f16(columns + 2 * col);
}

void q8_0_floats(const PackedRows& m, int64_t row, float* out) {
  const uint8_t* block = m.data + row * m.cols / 32 * 34;
  for (int64_t col = 0; col < m.cols; col += 32, block += 34) signed_bytes(block + 2, 32, load_f16(block), out + col);
}

void int8_convrot_floats(const PackedRows& m, int64_t row, float* out) {
  signed_bytes(m.data + row * m.cols, m.cols, row_scale(m, row), out);
  for (int64_t group = 0; m.rotation > 0 && group < m.cols; group += m.rotation) rotate_group(out + group, m.rotation);
}

// e4m3_to_f32 without branches, so that it becomes vectors.
inline float e4m3_value(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu, normal = (magnitude << 20) + (120u << 23);
  const uint32_t subnormal = f32_bits(static_cast<float>(static_cast<int>(magnitude)) * 0.001953125f);  // 2^-9
  const uint32_t bits = magnitude < 8u ? subnormal : magnitude == 0x7fu ? 0x7fc00000u : normal;
  return f32_from_bits(static_cast<uint32_t>(code & 0x80u) << 24 | bits);
}

void f8_e4m3_floats(const PackedRows& m, int64_t row, float* out) {
  const uint8_t* codes = m.data + row * m.cols;
  const float scale = row_scale(m, row);
  for (int64_t i = 0; i < m.cols; ++i) out[i] = e4m3_value(codes[i]) * scale;
}

constexpr Expander kExpanders[] = {
    {"q4tp", floats<q4tp_begin, q4tp_decode>, q4tp_codes},
    {"q2tp", floats<q2tp_begin, q2tp_decode>, q2tp_codes},
    {"nvfp4", floats<no_rungs, nvfp4_decode>, codes<no_rungs, nvfp4_decode>},
    {"Q4_0", floats<no_rungs, q4_0_decode>, codes<no_rungs, q4_0_decode>},
    {"Q4_1", floats<no_rungs, q4_1_decode>, codes<no_rungs, q4_1_decode>},
    {"Q5_0", floats<no_rungs, q5_0_decode>, codes<no_rungs, q5_0_decode>},
    {"Q5_1", floats<no_rungs, q5_1_decode>, codes<no_rungs, q5_1_decode>},
    {"Q2_K", floats<no_rungs, q2_k_decode>, codes<no_rungs, q2_k_decode>},
    {"Q3_K", floats<no_rungs, q3_k_decode>, codes<no_rungs, q3_k_decode>},
    {"Q4_K", floats<no_rungs, q4_k_decode>, q4_k_codes},
    {"Q5_K", floats<no_rungs, q5_k_decode>, codes<no_rungs, q5_k_decode>},
    {"Q6_K", floats<no_rungs, q6_k_decode>, codes<no_rungs, q6_k_decode>},
    {"f8_e4m3", f8_e4m3_floats},
    {"f8_e5m2", floats<no_rungs, f8_e5m2_decode>},
    {"q8_row", q8_row_floats},
    {"q8_2f", q8_2f_floats},
    {"int8_convrot", int8_convrot_floats, nullptr, true},
    {"Q8_0", q8_0_floats},
};

const Expander* expander(const char* format) {
  for (const Expander& e : kExpanders) {
    const char *a = e.format, *b = format;
    while (*a != 0 && *a == *b) ++a, ++b;
    if (*a == *b) return &e;
  }
  return nullptr;
}

}  // namespace
}  // namespace h3::isa
