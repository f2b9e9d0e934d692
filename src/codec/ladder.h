// The scales of q4tp and q2tp: every row has a ladder of 32 scales in geometric steps, every group of 32 columns stores
// the five bits of a rung (spec formats A.5, A.6, A.7). Payload planes, without alignment between them:
//   levels [rows][groups][level bytes] | f16 lo, f16 step [rows] | rungs [rows][ceil(5 groups / 8)], bits LSB first
#pragma once

#include <cstdint>

#include "codec/half_math.h"
#include "codec/packed.h"

namespace h3 {

H3_HD static inline int64_t rung_bytes(int64_t groups) { return (5 * groups + 7) / 8; }

H3_HD static inline int64_t ladder_bytes(int64_t rows, int64_t cols, int64_t level_bytes) {
  const int64_t groups = cols / 32;
  return rows * (groups * level_bytes + 4 + rung_bytes(groups));
}

// rungs[c] = 2^lo * ratio^c as an iterated f32 product: that product is the definition.
H3_HD static inline void fill_ladder(uint16_t lo, uint16_t step, float* rungs) {
  const float ratio = exp2_of_half(step);
  float scale = exp2_of_half(lo);
  for (int c = 0; c < 32; ++c) {
    rungs[c] = scale;
    scale *= ratio;
  }
}

H3_HD static inline const uint8_t* ladder_params(const PackedRows& m, int64_t row, int64_t level_bytes) {
  return m.data + m.rows * (m.cols / 32) * level_bytes + row * 4;
}

H3_HD static inline int rung_of(const PackedRows& m, int64_t row, int64_t group, int64_t level_bytes) {
  const int64_t groups = m.cols / 32, bit = 5 * group;
  const uint8_t* p = m.data + m.rows * (groups * level_bytes + 4) + row * rung_bytes(groups) + bit / 8;
  const int shift = static_cast<int>(bit % 8);
  const uint32_t bits = shift > 3 ? p[0] | static_cast<uint32_t>(p[1]) << 8 : p[0];
  return static_cast<int>((bits >> shift) & 31u);
}

// ---- encoding, all in f32 ----

// The logarithm of the scale that maps the largest weight of a group to `levels`; false when the group is all zero.
static inline bool group_log2(const float* w, float levels, float* log) {
  float top = 0;
  for (int i = 0; i < 32; ++i) {
    const float a = w[i] < 0 ? -w[i] : w[i];
    if (a > top) top = a;
  }
  *log = log2_of_half(scale_to_f16_cmf(top / levels));
  return top != 0;
}

struct RowRange {
  uint16_t lo = 0;
  float lo_value = 0, hi = 0;
};

static inline RowRange row_range(const float* w, int64_t groups, float levels) {
  float lo = 0, hi = 0;
  bool any = false;
  for (int64_t g = 0; g < groups; ++g) {
    float log;
    if (!group_log2(w + 32 * g, levels, &log)) continue;
    if (!any || log < lo) lo = log;
    if (!any || log > hi) hi = log;
    any = true;
  }
  if (!any) lo = hi = -14;  // what an empty group's floor of 2^-14 gives
  RowRange range;
  range.lo = f32_to_f16_cmf(lo);
  range.lo_value = f16_to_f32(range.lo);
  range.hi = hi;
  return range;
}

// The smallest f16 step with which `count` steps from lo reach `top`.
static inline uint16_t ladder_step(const RowRange& range, float top, float count) {
  const float span = top - range.lo_value;
  uint16_t step = f32_to_f16_cmf((span > 0 ? span : 0.0f) / count);
  for (int i = 0; i < 64; ++i) {
    const float value = f16_to_f32(step);
    if (value > 0 && range.lo_value + count * value >= top) break;
    ++step;
  }
  return step;
}

static inline void store_ladder(const RowRange& range, uint16_t step, uint8_t* params) {
  store_u16(params, range.lo);
  store_u16(params + 2, step);
}

static inline void store_rung(uint8_t* rungs, int64_t group, int rung) {
  const int64_t bit = 5 * group;
  const uint32_t bits = static_cast<uint32_t>(rung) << (bit % 8);
  rungs[bit / 8] = static_cast<uint8_t>(rungs[bit / 8] | bits);
  if (bits > 0xff) rungs[bit / 8 + 1] = static_cast<uint8_t>(rungs[bit / 8 + 1] | bits >> 8);
}

}  // namespace h3
