// Softmax on score tiles. A row of a tile is one vector of 16 scores and 32 weights are one row of an A tile, so scores
// go from accumulators to operands with one load and half a store per 16 of them. See
// docs/measurements/011-attention.md.
#include "backends/cpu/isa/amx/softmax.h"

#include <immintrin.h>

namespace h3::isa {
namespace {

constexpr int kTile = 256, kTileRows = 16;  // floats and rows of a tile; a panel has 2 x 2 tiles
constexpr int kStepBytes = 2048, kTileBytes = 1024;

// 2^t for t <= 127; NaN stays, -Inf gives 0. Degree 5 over the fraction of t, interpolated at Chebyshev nodes: relative
// error 1.1e-7.
inline __m512 power_of_two(__m512 t) {
  const __m512 r = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_set1_ps(1.8937540581e-3f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.9495904232e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5860337077e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4014181820e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9315448966e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.9999989835e-1f));
  return _mm512_scalef_ps(p, t);
}

inline __mmask16 below(int64_t n) {
  return n >= 16 ? __mmask16(0xffff) : n <= 0 ? __mmask16(0) : __mmask16((1u << n) - 1u);
}

// One row of scores and where its weights go.
struct Line {
  const float* scores;
  std::byte* weights;
  int64_t panel;  // floats from one panel of keys to the next
  int64_t full, rest;
  __mmask16 low, high;  // of the panel behind the full ones
};

// Calls body(n, low half, high half) with scale * s - reference for every panel of keys.
template <typename Body>
inline __attribute__((always_inline)) void each_panel(const Line& line, __m512 scale, __m512 reference, Body body) {
  const float* s = line.scores;
  for (int64_t n = 0; n < line.full; ++n, s += line.panel) {
    body(n, _mm512_fmsub_ps(_mm512_load_ps(s), scale, reference),
         _mm512_fmsub_ps(_mm512_load_ps(s + kTile), scale, reference));
  }
  if (line.rest == 0) return;
  const __m512 nothing = _mm512_set1_ps(-__builtin_inff());  // whose weight is zero
  body(line.full,
       _mm512_mask_fmsub_ps(_mm512_mask_mov_ps(nothing, line.low, _mm512_load_ps(s)), line.low, scale, reference),
       _mm512_mask_fmsub_ps(_mm512_mask_mov_ps(nothing, line.high, _mm512_load_ps(s + kTile)), line.high, scale,
                            reference));
}

inline float highest(const Line& line, float scale) {
  __m512 low = _mm512_set1_ps(-__builtin_inff()), high = low;
  each_panel(line, _mm512_set1_ps(scale), _mm512_setzero_ps(), [&](int64_t, __m512 a, __m512 b) {
    low = _mm512_max_ps(low, a);
    high = _mm512_max_ps(high, b);
  });
  return _mm512_reduce_max_ps(_mm512_max_ps(low, high));
}

// Writes the weights relative to the reference; returns their sum, and the highest exponent in `top`.
inline float weigh(const Line& line, float scale, float reference, float* top) {
  __m512 sum_low = _mm512_setzero_ps(), sum_high = sum_low, low = _mm512_set1_ps(-__builtin_inff()), high = low;
  each_panel(line, _mm512_set1_ps(scale), _mm512_set1_ps(reference), [&](int64_t n, __m512 a, __m512 b) {
    low = _mm512_max_ps(low, a);
    high = _mm512_max_ps(high, b);
    const __m512 wa = power_of_two(a), wb = power_of_two(b);
    sum_low = _mm512_add_ps(sum_low, wa);
    sum_high = _mm512_add_ps(sum_high, wb);
    _mm512_store_si512(line.weights + n * kStepBytes, (__m512i)_mm512_cvtne2ps_pbh(wb, wa));
  });
  *top = _mm512_reduce_max_ps(_mm512_max_ps(low, high));
  return _mm512_reduce_add_ps(_mm512_add_ps(sum_low, sum_high));
}

// Weights are relative to the highest of the first 32 scores that a row sees, not to its maximum: their exponent has
// room for 2^64, and a block that needs more is weighed again. So scores are read once, and accumulators are rescaled
// next to never.
constexpr float kRoom = 64;

inline void softmax_row(const TileSoftmaxArgs& args, int64_t row, float scale) {
  const int64_t down = row / kTileRows, in = row % kTileRows;
  int64_t valid = args.valid;
  if (args.causal) {
    const int64_t seen = args.first_query + row + 1 - args.first_key;
    valid = seen < valid ? (seen < 0 ? 0 : seen) : valid;
  }
  Line line;
  line.scores = args.scores + down * 2 * kTile + in * 16;
  line.weights = args.weights + down * kTileBytes + in * 64;
  line.panel = args.scores_panel;
  line.full = valid / 32;
  line.rest = valid % 32;
  line.low = below(line.rest);
  line.high = below(line.rest - 16);

  const float before = args.maximum[row];
  float reference = before, top = 0, sum = 0, factor = 1;
  if (before == -__builtin_inff()) {
    Line first = line;
    if (line.full > 0) first.full = 1, first.rest = 0;
    reference = highest(first, scale);
    factor = 0;
  }
  if (reference != -__builtin_inff()) sum = weigh(line, scale, reference, &top);
  if (reference == -__builtin_inff() || top > kRoom) {
    const float found = highest(line, scale);
    reference = found > before ? found : before;
    if (before != -__builtin_inff()) factor = _mm512_cvtss_f32(power_of_two(_mm512_set1_ps(before - reference)));
    sum = weigh(line, scale, reference, &top);
  }
  for (int64_t n = line.full + (line.rest > 0); n < args.cols / 32; ++n) {
    _mm512_store_si512(line.weights + n * kStepBytes, _mm512_setzero_si512());
  }
  args.maximum[row] = reference;
  args.total[row] = args.total[row] * factor + sum;
  if (factor == 1 || factor == 0) return;  // 0: the first block, nothing accumulated yet
  float* out = args.output + down * 2 * kTile + in * 16;
  const __m512 by = _mm512_set1_ps(factor);
  for (int64_t n = 0; n < args.output_panels; ++n, out += args.output_panel) {
    _mm512_store_ps(out, _mm512_mul_ps(by, _mm512_load_ps(out)));
    _mm512_store_ps(out + kTile, _mm512_mul_ps(by, _mm512_load_ps(out + kTile)));
  }
}

}  // namespace

void softmax_tiles(const TileSoftmaxArgs& args) {
  const float scale = args.scale * 1.44269504088896341f;
  for (int64_t row = 0; row < args.rows; ++row) softmax_row(args, row, scale);
}

}  // namespace h3::isa
