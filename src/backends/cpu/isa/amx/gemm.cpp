// Matrix kernels on AMX tiles: 2 x 2 accumulator tiles of 16 x 16, two row tiles of A, two column tiles of B.
//
// A step is 64 bytes of k (32 bf16 or 64 int8): A [2 tiles][16 rows][64 bytes], B [2 tiles][16 groups of k][16 columns]
// [4 bytes], each tile 1 KiB and contiguous, so that a tile load touches 16 consecutive lines. A slice is 8 steps: 16
// KiB of B stay in the first-level cache, also when two threads share a core. See docs/measurements/010-amx-linear.md.
#include "backends/cpu/isa/amx/pack_inl.h"
#include "backends/cpu/isa/amx/softmax.h"
#include "backends/cpu/isa/amx/tiles.h"

namespace h3::isa {
namespace {

constexpr int kSliceSteps = 8;

// The intrinsics are macros that want literal register numbers.
#define H3_TILE_MULTIPLY(c, a, b) \
  if constexpr (Integer) {        \
    _tile_dpbssd(c, a, b);        \
  } else {                        \
    _tile_dpbf16ps(c, a, b);      \
  }

// Lines fetched into the second-level cache (First: into the first), Lines per step.
template <int Lines, bool First = false>
inline __attribute__((always_inline)) void fetch(const std::byte*& next) {
#pragma GCC unroll 32
  for (int i = 0; i < Lines; ++i) _mm_prefetch(next + 64 * i, First ? _MM_HINT_T0 : _MM_HINT_T1);
  next += 64 * Lines;
}

// A streams from the second level and is asked for two steps ahead: a tile load that misses the first level holds the
// window of a thread that shares its core. The steps behind the end of a panel are the next panel.
constexpr int64_t kAhead = 2 * kStepBytes;

// FirstB: what is fetched of B will be used at once, not in the next slice.
template <bool Integer, int LinesA, int LinesB, bool FirstB>
inline __attribute__((always_inline)) void step(const std::byte*& a, const std::byte*& b, const std::byte*& next_a,
                                                const std::byte*& next_b) {
  const std::byte* ahead = a + kAhead;
  _tile_loadd(4, a, 64);
  _tile_loadd(6, b, 64);
  fetch<LinesA>(next_a);
  fetch<8, true>(ahead);
  H3_TILE_MULTIPLY(0, 4, 6)
  _tile_loadd(7, b + kTileBytes, 64);
  fetch<LinesB, FirstB>(next_b);
  fetch<8, true>(ahead);
  H3_TILE_MULTIPLY(1, 4, 7)
  _tile_loadd(5, a + kTileBytes, 64);
  fetch<8, true>(ahead);
  H3_TILE_MULTIPLY(2, 5, 6)
  fetch<8, true>(ahead);
  H3_TILE_MULTIPLY(3, 5, 7)
  a += kStepBytes;
  b += kStepBytes;
}
#undef H3_TILE_MULTIPLY

template <bool Integer, int LinesA, int LinesB, bool FirstB>
inline __attribute__((always_inline)) void micro(const std::byte* a, const std::byte* b, int64_t steps, float* c,
                                                 const ResultLayout& layout, bool add, const std::byte* next_a,
                                                 const std::byte* next_b) {
  const int64_t row_bytes = layout.row * 4;
  float* const c01 = c + layout.tile_right;
  float* const c10 = c + layout.tile_down;
  float* const c11 = c10 + layout.tile_right;
  if (add) {
    _tile_loadd(0, c, row_bytes);
    _tile_loadd(1, c01, row_bytes);
    _tile_loadd(2, c10, row_bytes);
    _tile_loadd(3, c11, row_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  if (steps == kSliceSteps) {
#pragma GCC unroll 8
    for (int k = 0; k < kSliceSteps; ++k) step<Integer, LinesA, LinesB, FirstB>(a, b, next_a, next_b);
  } else {
    for (int64_t k = 0; k < steps; ++k) step<Integer, LinesA, LinesB, FirstB>(a, b, next_a, next_b);
  }
  _tile_stored(0, c, row_bytes);
  _tile_stored(1, c01, row_bytes);
  _tile_stored(2, c10, row_bytes);
  _tile_stored(3, c11, row_bytes);
}

// While a slice is multiplied, the next slice of A is fetched evenly over all micro tiles, and the next panel of B over
// the micro tiles of a panel. One line too few and every panel starts with misses of the whole memory latency.
template <bool Integer, int LinesA, int LinesB, bool FirstB = false>
void walk(const GemmBlock& block) {
  const std::byte* next_a = block.next_a;
  for (int64_t n = 0; n < block.n_panels; ++n) {
    const std::byte* b = block.b + n * block.b_panel;
    const std::byte* next_b = n + 1 < block.n_panels || block.next_b == nullptr ? b + block.b_panel : block.next_b;
    for (int64_t m = 0; m < block.m_panels; ++m) {
      micro<Integer, LinesA, LinesB, FirstB>(block.a + m * block.a_panel, b, block.k_steps,
                                             block.c + m * block.layout.m_panel + n * block.layout.n_panel,
                                             block.layout, block.accumulate, next_a, next_b);
      next_a += block.k_steps * 64 * LinesA;
      next_b += block.k_steps * 64 * LinesB;
    }
  }
}

// Lines of B per step that cover a panel within m_panels micro tiles.
template <bool Integer, int LinesA>
void walk_for(const GemmBlock& block) {
  if (block.m_panels >= 16) return walk<Integer, LinesA, 2>(block);
  if (block.m_panels >= 11) return walk<Integer, LinesA, 3>(block);
  if (block.m_panels >= 8) return walk<Integer, LinesA, 4>(block);
  // Few rows, and attention: the next panel of B goes straight to the first level.
  if (block.m_panels >= 2) return walk<Integer, LinesA, 16, true>(block);
  walk<Integer, LinesA, 32, true>(block);
}

template <bool Integer>
void block(const GemmBlock& block) {
  configure_tiles();
  if (block.next_a == nullptr) {
    walk_for<Integer, 0>(block);
  } else if (block.n_panels >= 8) {
    walk_for<Integer, 4>(block);
  } else {
    walk_for<Integer, 8>(block);
  }
  _tile_release();
}

}  // namespace

const Gemm kBf16Amx = {.name = "bf16_amx",
                       .mr = kMr,
                       .nr = kNr,
                       .kr = 32,
                       .tile_rows = 16,
                       .tile_cols = 16,
                       .slice_steps = kSliceSteps,
                       .a_step = kStepBytes,
                       .b_step = kStepBytes,
                       .integer = false,
                       .a_offset = 0,
                       .block = block<false>,
                       .pack_a = pack_rows_of_a<ToBf16>,
                       .pack_b = pack_rows_of_b<ToBf16>,
                       .pack_b_rows = pack_columns_bf16,
                       .softmax = softmax_tiles};
const Gemm kInt8Amx = {.name = "int8_amx",
                       .mr = kMr,
                       .nr = kNr,
                       .kr = 64,
                       .tile_rows = 16,
                       .tile_cols = 16,
                       .slice_steps = kSliceSteps,
                       .a_step = kStepBytes,
                       .b_step = kStepBytes,
                       .integer = true,
                       .a_offset = 0,
                       .block = block<true>,
                       .pack_a = pack_rows_of_a<ToInt8>,
                       .pack_b = pack_rows_of_b<ToInt8>,
                       .pack_b_rows = pack_columns_int8,
                       .pack_b_codes = pack_codes};

}  // namespace h3::isa
