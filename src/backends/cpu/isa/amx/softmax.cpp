// Softmax on score tiles. A row of a tile is one vector of 16 scores and 32 weights are one row of an A tile, so scores
// go from accumulators to operands with one load and half a store per 16 of them. See
// docs/measurements/011-attention.md.
#include "backends/cpu/isa/amx/softmax.h"

#include <immintrin.h>

namespace h3::isa {
namespace {

constexpr int kTile = 256, kTileRows = 16;  // floats and rows of a tile; a panel has 2 x 2 tiles
constexpr int kStepBytes = 2048, kTileBytes = 1024;

// 2^t for t <= 0; NaN stays, -Inf gives 0. Degree 5 over the fraction of t, interpolated at Chebyshev nodes: relative
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

inline void softmax_row(const TileSoftmaxArgs& args, int64_t row, float scale) {
  const int64_t down = row / kTileRows, in = row % kTileRows;
  const float* s = args.scores + down * 2 * kTile + in * 16;
  std::byte* weights = args.weights + down * kTileBytes + in * 64;
  int64_t valid = args.valid;
  if (args.causal) {
    const int64_t seen = args.first_query + row + 1 - args.first_key;
    valid = seen < valid ? (seen < 0 ? 0 : seen) : valid;
  }
  const int64_t full = valid / 32, rest = valid % 32;
  const __mmask16 low = below(rest), high = below(rest - 16);

  const float before = args.maximum[row];
  __m512 top_low = _mm512_set1_ps(-__builtin_inff()), top_high = top_low;
  for (int64_t n = 0; n < full; ++n) {
    top_low = _mm512_max_ps(top_low, _mm512_load_ps(s + n * args.scores_panel));
    top_high = _mm512_max_ps(top_high, _mm512_load_ps(s + n * args.scores_panel + kTile));
  }
  const float* tail = s + full * args.scores_panel;
  if (rest > 0) {
    top_low = _mm512_mask_max_ps(top_low, low, top_low, _mm512_load_ps(tail));
    top_high = _mm512_mask_max_ps(top_high, high, top_high, _mm512_load_ps(tail + kTile));
  }
  const float found = _mm512_reduce_max_ps(_mm512_max_ps(top_low, top_high)) * scale;
  const float now = found > before || found != found ? found : before;
  float factor = 1;
  if (now != before) {
    // A row that has seen no key yet has maximum -Inf and nothing to rescale.
    factor = before == -__builtin_inff() ? 0.0f : _mm512_cvtss_f32(power_of_two(_mm512_set1_ps(before - now)));
    float* out = args.output + down * 2 * kTile + in * 16;
    const __m512 by = _mm512_set1_ps(factor);
    for (int64_t n = 0; n < args.output_panels; ++n, out += args.output_panel) {
      _mm512_store_ps(out, _mm512_mul_ps(by, _mm512_load_ps(out)));
      _mm512_store_ps(out + kTile, _mm512_mul_ps(by, _mm512_load_ps(out + kTile)));
    }
    args.maximum[row] = now;
  }

  const __m512 by = _mm512_set1_ps(scale), least = _mm512_set1_ps(now);
  __m512 sum_low = _mm512_setzero_ps(), sum_high = sum_low;
  for (int64_t n = 0; n < full; ++n) {
    const float* at = s + n * args.scores_panel;
    const __m512 a = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(at), by, least));
    const __m512 b = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(at + kTile), by, least));
    sum_low = _mm512_add_ps(sum_low, a);
    sum_high = _mm512_add_ps(sum_high, b);
    _mm512_store_si512(weights + n * kStepBytes, (__m512i)_mm512_cvtne2ps_pbh(b, a));
  }
  int64_t n = full;
  if (rest > 0) {
    const __m512 a =
        _mm512_maskz_mov_ps(low, power_of_two(_mm512_fmsub_ps(_mm512_maskz_load_ps(low, tail), by, least)));
    const __m512 b =
        _mm512_maskz_mov_ps(high, power_of_two(_mm512_fmsub_ps(_mm512_maskz_load_ps(high, tail + kTile), by, least)));
    sum_low = _mm512_add_ps(sum_low, a);
    sum_high = _mm512_add_ps(sum_high, b);
    _mm512_store_si512(weights + n++ * kStepBytes, (__m512i)_mm512_cvtne2ps_pbh(b, a));
  }
  for (; n < args.cols / 32; ++n) _mm512_store_si512(weights + n * kStepBytes, _mm512_setzero_si512());
  args.total[row] = args.total[row] * factor + _mm512_reduce_add_ps(_mm512_add_ps(sum_low, sum_high));
}

}  // namespace

void softmax_tiles(const TileSoftmaxArgs& args) {
  const float scale = args.scale * 1.44269504088896341f;
  for (int64_t row = 0; row < args.rows; ++row) softmax_row(args, row, scale);
}

}  // namespace h3::isa
