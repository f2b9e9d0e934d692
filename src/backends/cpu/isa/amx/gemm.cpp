// Matrix kernels on AMX tiles: 2 x 2 accumulator tiles of 16 x 16, two row tiles of A, two column tiles of B.
//
// A step is 64 bytes of k (32 bf16 or 64 int8): A [2 tiles][16 rows][64 bytes], B [2 tiles][16 groups of k][16 columns]
// [4 bytes], each tile 1 KiB and contiguous, so that a tile load touches 16 consecutive lines. A slice is 8 steps: 16
// KiB of B stay in the first-level cache, also when two threads share a core. See docs/measurements/010-amx-linear.md.
#include "backends/cpu/isa/amx/expand.h"
#include "backends/cpu/isa/amx/pack_inl.h"
#include "backends/cpu/isa/amx/softmax.h"
#include "backends/cpu/isa/amx/tiles.h"

namespace h3::isa {
namespace {

constexpr int kSliceSteps = 8;
// 840 KiB of C: the larger a block, the less often operands travel to the second level, which besides C holds the
// present and the next slice of A. Both divide the matrices of a release block.
constexpr int kBlockRows = 480, kBlockCols = 448;

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

// How the operands of a block come near. Many rows: A streams past the first level, so that B and C stay there; while a
// slice is multiplied, the next slice of A is fetched evenly over all micro tiles, the next panel of B over the micro
// tiles of a panel, and C of the next micro tile over the steps of this one. One line of B too few and every panel
// starts with misses of the whole memory latency. Few rows, and attention: A is asked for two steps ahead, and the next
// panel of B goes straight to the first level, because it is used at once. The steps behind the end of a panel of A are
// the next panel. See docs/measurements/015-amx-traffic.md.
template <int A, int B, bool Few>
struct Fetch {
  static constexpr int kA = A, kB = B;  // lines per step
  static constexpr int kC = Few ? 0 : 4 * kTileBytes / 64 / kSliceSteps;
  static constexpr bool kFew = Few;
};
constexpr int64_t kAhead = 2 * kStepBytes;

// Where the lines are that the next step fetches.
struct Next {
  const std::byte *a, *b, *c;
};

template <bool Integer, typename How>
inline __attribute__((always_inline)) void step(const std::byte*& a, const std::byte*& b, Next& next) {
  const std::byte* ahead = a + kAhead;
  constexpr int kAheadLines = How::kFew ? 8 : 0;
  if constexpr (How::kFew) {
    _tile_loadd(4, a, 64);
  } else {
    _tile_stream_loadd(4, a, 64);
  }
  _tile_loadd(6, b, 64);
  fetch<How::kA>(next.a);
  fetch<kAheadLines, true>(ahead);
  H3_TILE_MULTIPLY(0, 4, 6)
  _tile_loadd(7, b + kTileBytes, 64);
  fetch<How::kB, How::kFew>(next.b);
  fetch<kAheadLines, true>(ahead);
  H3_TILE_MULTIPLY(1, 4, 7)
  if constexpr (How::kFew) {
    _tile_loadd(5, a + kTileBytes, 64);
  } else {
    _tile_stream_loadd(5, a + kTileBytes, 64);
  }
  fetch<How::kC, true>(next.c);
  fetch<kAheadLines, true>(ahead);
  H3_TILE_MULTIPLY(2, 5, 6)
  fetch<kAheadLines, true>(ahead);
  H3_TILE_MULTIPLY(3, 5, 7)
  a += kStepBytes;
  b += kStepBytes;
}
#undef H3_TILE_MULTIPLY

template <bool Integer, typename How>
inline __attribute__((always_inline)) void micro(const std::byte* a, const std::byte* b, int64_t steps, Next next) {
  if (steps == kSliceSteps) {
#pragma GCC unroll 8
    for (int k = 0; k < kSliceSteps; ++k) step<Integer, How>(a, b, next);
  } else {
    for (int64_t k = 0; k < steps; ++k) step<Integer, How>(a, b, next);
  }
}

// The four tiles of C.
struct Result {
  float *c00, *c01, *c10, *c11;
  Result(float* c, const ResultLayout& layout)
      : c00(c), c01(c + layout.tile_right), c10(c + layout.tile_down), c11(c10 + layout.tile_right) {}
};

inline __attribute__((always_inline)) void take(const Result& r, int64_t row_bytes, bool add) {
  if (add) {
    _tile_loadd(0, r.c00, row_bytes);
    _tile_loadd(1, r.c01, row_bytes);
    _tile_loadd(2, r.c10, row_bytes);
    _tile_loadd(3, r.c11, row_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
}

inline __attribute__((always_inline)) void leave(const Result& r, int64_t row_bytes) {
  _tile_stored(0, r.c00, row_bytes);
  _tile_stored(1, r.c01, row_bytes);
  _tile_stored(2, r.c10, row_bytes);
  _tile_stored(3, r.c11, row_bytes);
}

// Leaves one micro tile and takes the next. Many rows: tile by tile, so that the first products of the next one need
// not wait for the last ones of this.
template <bool Few>
inline __attribute__((always_inline)) void exchange(const Result& done, const Result& r, int64_t row_bytes, bool add) {
  if (Few || !add) {
    leave(done, row_bytes);
    take(r, row_bytes, add);
    return;
  }
  _tile_stored(0, done.c00, row_bytes);
  _tile_loadd(0, r.c00, row_bytes);
  _tile_stored(1, done.c01, row_bytes);
  _tile_loadd(1, r.c01, row_bytes);
  _tile_stored(2, done.c10, row_bytes);
  _tile_loadd(2, r.c10, row_bytes);
  _tile_stored(3, done.c11, row_bytes);
  _tile_loadd(3, r.c11, row_bytes);
}

template <bool Integer, int LinesA, int LinesB, bool Few = false>
void walk(const GemmBlock& block) {
  const std::byte *next_a = block.next_a, *const end_a = next_a + block.next_a_bytes;
  const int64_t row_bytes = block.layout.row * 4;
  Result done(block.c, block.layout);
  take(done, row_bytes, block.accumulate);
  for (int64_t n = 0; n < block.n_panels; ++n) {
    const std::byte* b = block.b + n * block.b_panel;
    const std::byte* next_b = n + 1 < block.n_panels || block.next_b == nullptr ? b + block.b_panel : block.next_b;
    for (int64_t m = 0; m < block.m_panels; ++m) {
      const std::byte* a = block.a + m * block.a_panel;
      float* c = block.c + m * block.layout.m_panel + n * block.layout.n_panel;
      const Result result(c, block.layout);
      if (m + n > 0) exchange<Few>(done, result, row_bytes, block.accumulate);
      done = result;
      const Next next{next_a, next_b, reinterpret_cast<const std::byte*>(c + block.layout.m_panel)};
      if (LinesA > 0 && next_a < end_a) {
        micro<Integer, Fetch<LinesA, LinesB, Few>>(a, b, block.k_steps, next);
        next_a += block.k_steps * 64 * LinesA;
      } else {
        micro<Integer, Fetch<0, LinesB, Few>>(a, b, block.k_steps, next);
      }
      next_b += block.k_steps * 64 * LinesB;
    }
  }
  leave(done, row_bytes);
}

// Lines of B per step that cover a panel within m_panels micro tiles.
template <bool Integer, int LinesA>
void walk_for(const GemmBlock& block) {
  if (block.m_panels >= 16) return walk<Integer, LinesA, 2>(block);
  if (block.m_panels >= 11) return walk<Integer, LinesA, 3>(block);
  if (block.m_panels >= 8) return walk<Integer, LinesA, 4>(block);
  if (block.m_panels >= 2) return walk<Integer, LinesA, 16, true>(block);
  walk<Integer, LinesA, 32, true>(block);
}

template <bool Integer>
void block(const GemmBlock& block) {
  configure_tiles();
  if (block.next_a == nullptr) {
    walk_for<Integer, 0>(block);
  } else if (block.n_panels >= 11) {
    walk_for<Integer, 3>(block);
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
                       .softmax = softmax_tiles,
                       .block_rows = kBlockRows,
                       .block_cols = kBlockCols};
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
                       .pack_b_codes = pack_codes,
                       .tile_expander = tile_expander,
                       .block_rows = kBlockRows,
                       .block_cols = kBlockCols};

}  // namespace h3::isa
