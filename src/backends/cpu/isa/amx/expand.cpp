// q4tp into int8 tiles of B. A row has 32 scales of 16 levels: each of the 512 products is quantised once, codes are
// looked up by byte shuffles, 64 columns of two rows at a time, and 16 rows become a tile in registers.
#include "backends/cpu/isa/amx/expand.h"

#include "backends/cpu/isa/amx/tiles.h"
#include "codec/q4tp.h"

namespace h3::isa {
namespace {

constexpr int kRows = 16, kRungs = 32, kTable = kRungs * 16;  // bytes of one row's tables
constexpr int64_t kLevelBytes = 16, kFetchAhead = 512;  // bytes of a group; of a row ahead of its use

// Rows that do not exist have tables of zeros.
void q4tp_begin_tiles(const PackedRows& m, int64_t row, int64_t count, const float* inverse, std::byte* tables) {
  const __m512 levels = _mm512_set_ps(7, 6, 5, 4, 3, 2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8);
  const __m512 magic = _mm512_set1_ps(12582912.0f);
  for (int64_t r = 0; r < count; ++r, tables += kTable) {
    const uint8_t* const first = m.data + (row + r) * (m.cols / 32) * kLevelBytes;
    for (int64_t i = 0; i < kFetchAhead; i += 64) _mm_prefetch(first + i, _MM_HINT_T0);
    float rungs[kRungs];
    q4tp_begin(m, row + r, rungs);
    for (int i = 0; i < kRungs; ++i) {
      const __m512 scaled = _mm512_mul_ps(_mm512_mul_ps(levels, _mm512_set1_ps(rungs[i])), _mm512_set1_ps(inverse[r]));
      const __m512i q = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(scaled, magic)), _mm512_castps_si512(magic));
      // Codes that the row has are within 127; the others are never looked up.
      _mm_store_si128(reinterpret_cast<__m128i*>(tables + 16 * i), _mm512_cvtsepi32_epi8(q));
    }
  }
  __builtin_memset(tables, 0, static_cast<size_t>((kRows - count) * kTable));
}

inline __m128i table_at(const std::byte* tables, uint32_t rung) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(tables + 16 * rung));
}

// Tables of two groups of a row, or of one.
template <bool Whole>
inline __m256i tables_of(const std::byte* tables, uint32_t pair) {
  const __m256i first = _mm256_zextsi128_si256(table_at(tables, pair & 31));
  return Whole ? _mm256_inserti128_si256(first, table_at(tables, pair >> 5 & 31), 1) : first;
}

template <bool Whole>
inline __m256i levels_at(const uint8_t* p) {
  if (Whole) return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// The places of 16 rows of a matrix at one pair of groups.
struct Place {
  const uint8_t *levels, *rungs;
  int64_t level_stride, rung_stride;
  int shift;  // of the pair's ten bits
};

// 64 codes of rows r and r + 4. A quarter of a register holds 16 codes: of groups 0 and 1 of the one row, then of the
// other; `low` has the first half of every group, `high` the second.
template <bool Whole, bool Full>
inline void look_up(const Place& at, const std::byte* tables, int r, int64_t last, __m512i& low, __m512i& high) {
  __m256i packed[2], table[2];
  for (int i = 0; i < 2; ++i) {
    const int64_t row = Full || r + 4 * i < last ? r + 4 * i : last;
    const uint8_t *from = at.levels + row * at.level_stride, *rung = at.rungs + row * at.rung_stride;
    // Two rungs of an even group are ten bits that start at bit 0, 2, 4 or 6 of a byte, the last one five.
    const uint32_t pair = (Whole || at.shift > 3 ? load_u16(rung) : *rung) >> at.shift;
    _mm_prefetch(from + kFetchAhead, _MM_HINT_T0);
    packed[i] = levels_at<Whole>(from);
    table[i] = tables_of<Whole>(tables + (r + 4 * i) * kTable, pair);
  }
  const __m512i p = _mm512_inserti64x4(_mm512_castsi256_si512(packed[0]), packed[1], 1);
  const __m512i t = _mm512_inserti64x4(_mm512_castsi256_si512(table[0]), table[1], 1);
  const __m512i mask = _mm512_set1_epi8(15);
  const __m512i even = _mm512_shuffle_epi8(t, _mm512_and_si512(p, mask));
  const __m512i odd = _mm512_shuffle_epi8(t, _mm512_and_si512(_mm512_srli_epi16(p, 4), mask));
  low = _mm512_unpacklo_epi8(even, odd);
  high = _mm512_unpackhi_epi8(even, odd);
}

// 4 x 4 dwords of every quarter of four registers in place.
inline void transpose_quarters(__m512i v[4]) {
  const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]);
  const __m512i c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
  v[0] = _mm512_unpacklo_epi64(a, c);
  v[1] = _mm512_unpackhi_epi64(a, c);
  v[2] = _mm512_unpacklo_epi64(b, d);
  v[3] = _mm512_unpackhi_epi64(b, d);
}

template <bool Whole, bool Full>
inline void q4tp_tile(const Place& at, int64_t last, const std::byte* tables, std::byte* out) {
  __m512i low[8], high[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) look_up<Whole, Full>(at, tables, i + i / 4 * 4, last, low[i], high[i]);
  transpose_quarters(low);
  transpose_quarters(low + 4);
  transpose_quarters(high);
  transpose_quarters(high + 4);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // rows of the tile, four columns of k each
    constexpr int kFirst = 0x88, kSecond = 0xdd;
    _mm512_store_si512(out + 64 * i, _mm512_shuffle_i32x4(low[i], low[4 + i], kFirst));
    _mm512_store_si512(out + 64 * (4 + i), _mm512_shuffle_i32x4(high[i], high[4 + i], kFirst));
    _mm512_store_si512(out + 64 * (8 + i), _mm512_shuffle_i32x4(low[i], low[4 + i], kSecond));
    _mm512_store_si512(out + 64 * (12 + i), _mm512_shuffle_i32x4(high[i], high[4 + i], kSecond));
  }
}

void q4tp_tiles(const PackedRows& m, int64_t row, int64_t count, const std::byte* tables, int64_t k, int64_t length,
                std::byte* out) {
  const int64_t groups = m.cols / 32, end = (k + length) / 32, last = count > 0 ? count - 1 : 0;
  if (count == 0) row = 0;  // all tables are zeros: any row will do
  const uint8_t* const rungs = m.data + m.rows * (groups * kLevelBytes + 4) + row * rung_bytes(groups);
  Place at{nullptr, nullptr, groups * kLevelBytes, rung_bytes(groups), 0};
  for (int64_t g = k / 32; g < end; g += 2, out += kStepBytes) {
    at.levels = m.data + (row * groups + g) * kLevelBytes;
    at.rungs = rungs + 5 * g / 8;
    at.shift = static_cast<int>(5 * g % 8);
    if (g + 1 == end) {
      q4tp_tile<false, false>(at, last, tables, out);
    } else if (count == kRows) {
      q4tp_tile<true, true>(at, last, tables, out);
    } else {
      q4tp_tile<true, false>(at, last, tables, out);
    }
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
