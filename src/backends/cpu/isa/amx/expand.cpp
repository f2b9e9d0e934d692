// q4tp into int8 tiles of B. A row has 32 scales of 16 levels: each of the 512 products is quantised once, codes are
// looked up by byte shuffles, 64 columns at a time, and 16 rows become a tile in registers.
#include "backends/cpu/isa/amx/expand.h"

#include "backends/cpu/isa/amx/pack_inl.h"
#include "codec/q4tp.h"

namespace h3::isa {
namespace {

constexpr int kRows = 16, kRungs = 32, kTable = kRungs * 16;  // bytes of one row's tables

void q4tp_begin_tiles(const PackedRows& m, int64_t row, int64_t count, const float* inverse, std::byte* tables) {
  const __m512 levels = _mm512_set_ps(7, 6, 5, 4, 3, 2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8);
  const __m512 magic = _mm512_set1_ps(12582912.0f);
  for (int64_t r = 0; r < count; ++r, tables += kTable) {
    float rungs[kRungs];
    q4tp_begin(m, row + r, rungs);
    for (int i = 0; i < kRungs; ++i) {
      const __m512 scaled = _mm512_mul_ps(_mm512_mul_ps(levels, _mm512_set1_ps(rungs[i])), _mm512_set1_ps(inverse[r]));
      const __m512i q = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(scaled, magic)), _mm512_castps_si512(magic));
      // Codes that the row has are within 127; the others are never looked up.
      _mm_store_si128(reinterpret_cast<__m128i*>(tables + 16 * i), _mm512_cvtsepi32_epi8(q));
    }
  }
}

inline __m128i table_at(const std::byte* tables, uint32_t rung) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(tables + 16 * rung));
}

// 64 codes of one row; the 16-byte quarters in the order 0, 2, 1, 3, which costs no permutation.
inline __m512i look_up_step(__m256i packed, __m256i table) {
  const __m256i mask = _mm256_set1_epi8(15);
  const __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(packed, mask));
  const __m256i high = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(packed, 4), mask));
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_unpacklo_epi8(low, high)), _mm256_unpackhi_epi8(low, high),
                            1);
}

constexpr int64_t kLevelBytes = 16, kFetchAhead = 512;  // bytes of a group; of a row ahead of its use

void q4tp_tiles(const PackedRows& m, int64_t row, int64_t count, const std::byte* tables, int64_t k, int64_t length,
                std::byte* out) {
  constexpr int kQuarter[4] = {0, 2, 1, 3};
  const int64_t groups = m.cols / 32, end = (k + length) / 32;
  const uint8_t* const levels = m.data + row * groups * kLevelBytes;
  const uint8_t* const rungs = m.data + m.rows * (groups * kLevelBytes + 4) + row * rung_bytes(groups);
  for (int64_t g = k / 32; g < end; g += 2, out += kStepBytes) {
    const bool whole = g + 1 < end;
    __m512i v[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      if (r >= count) {
        v[r] = _mm512_setzero_si512();
        continue;
      }
      const uint8_t* from = levels + (r * groups + g) * kLevelBytes;
      const std::byte* table = tables + r * kTable;
      if (whole) {
        // Two rungs of an even group are ten bits that start at bit 0, 2, 4 or 6 of a byte.
        const uint32_t pair = load_u16(rungs + r * rung_bytes(groups) + 5 * g / 8) >> (5 * g % 8);
        _mm_prefetch(from + kFetchAhead, _MM_HINT_T0);
        v[r] = look_up_step(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
                            _mm256_inserti128_si256(_mm256_castsi128_si256(table_at(table, pair & 31)),
                                                    table_at(table, pair >> 5 & 31), 1));
      } else {
        const int rung = rung_of(m, row + r, g, kLevelBytes);
        v[r] = look_up_step(_mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
                            _mm256_zextsi128_si256(table_at(table, static_cast<uint32_t>(rung))));
      }
    }
    transpose(v);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(out + (kQuarter[i / 4] * 4 + i % 4) * 64, v[i]);
  }
}

constexpr TileExpander kTileExpanders[] = {{"q4tp", int64_t{kRows} * kTable, q4tp_begin_tiles, q4tp_tiles}};

}  // namespace

const TileExpander* tile_expander(const char* format) {
  for (const TileExpander& e : kTileExpanders) {
    if (__builtin_strcmp(e.format, format) == 0) return &e;
  }
  return nullptr;
}

}  // namespace h3::isa
