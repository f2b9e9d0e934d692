// q2tp: two bits a weight, levels -1.5, -0.5, 0.5, 1.5 times the scale of a rung; rung 0 is a scale of zero, rung r the
// ladder's r - 1 (spec formats A.6). Byte k of a group holds elements 4k .. 4k + 3, the first in the low bits.
#pragma once

#include <cstdint>

#include "codec/ladder.h"

namespace h3 {

H3_HD static inline int64_t q2tp_bytes(int64_t rows, int64_t cols) { return ladder_bytes(rows, cols, 8); }

H3_HD static inline void q2tp_rungs(uint16_t lo, uint16_t step, float* table) {
  fill_ladder(lo, step, table);
  for (int c = 31; c > 0; --c) table[c] = table[c - 1];
  table[0] = 0;
}

H3_HD static inline void q2tp_begin(const PackedRows& m, int64_t row, float* table) {
  const uint8_t* params = ladder_params(m, row, 8);
  q2tp_rungs(load_u16(params), load_u16(params + 2), table);
}

H3_HD static inline void q2tp_decode(const PackedRows& m, const float* table, int64_t row, int64_t col, int,
                                     float* out) {
  const int64_t groups = m.cols / 32;
  const float scale = table[rung_of(m, row, col / 32, 8)];
  const uint8_t* p = m.data + row * groups * 8 + col / 4;
  for (int i = 0; i < 8; ++i) out[i] = (static_cast<float>(p[i / 4] >> (2 * (i % 4)) & 3) - 1.5f) * scale;
}

// ---- encoding ----

static inline float q2tp_field(float w, float inverse) { return round_even(clamp_to(w * inverse + 1.5f, 0, 3)); }

// The rung of first .. last with the least squared error over the group, the first of equals; -1 when no scale of them
// is positive. At most five candidates, none below 1.
static inline int q2tp_best(const float* w, const float* rungs, int first, int last, float* least) {
  float scale[5], inverse[5], error[5] = {};
  for (int k = 0; k < 5; ++k) {
    const int c = first + k;
    scale[k] = c > last || c > 31 ? 0.0f : rungs[c];
    inverse[k] = scale[k] > 0 ? 1 / scale[k] : 0.0f;
  }
  for (int i = 0; i < 32; ++i) {
    for (int k = 0; k < 5; ++k) {
      const float d = w[i] - (q2tp_field(w[i], inverse[k]) - 1.5f) * scale[k];
      error[k] += d * d;
    }
  }
  int best = -1;
  for (int k = 0; k < 5; ++k) {
    if (scale[k] > 0 && (best < 0 || error[k] < error[best])) best = k;
  }
  if (best >= 0) *least = error[best];
  return best < 0 ? -1 : first + best;
}

static inline int q2tp_nominal(float log, const RowRange& range, float step) {
  if (!(step > 0)) return 1;
  return 1 + static_cast<int>(round_even(clamp_to((log - range.lo_value) / step, 0, 30)));
}

// Squared error of a row whose ladder ends at `top`, each group at the best rung around its nominal one.
static inline float q2tp_trial(const float* w, int64_t groups, const RowRange& range, float top) {
  const uint16_t step = ladder_step(range, top, 30);
  const float step_value = f16_to_f32(step);
  float rungs[32];
  q2tp_rungs(range.lo, step, rungs);
  float error = 0;
  for (int64_t g = 0; g < groups; ++g) {
    float log;
    if (!group_log2(w + 32 * g, 1.5f, &log)) continue;
    const int nominal = q2tp_nominal(log, range, step_value);
    float least = f32_from_bits(0x7f800000u);  // no usable rung
    q2tp_best(w + 32 * g, rungs, nominal > 2 ? nominal - 2 : 1, nominal + 2, &least);
    error += least;
  }
  return error;
}

// One row into its places in the three planes. Weights are finite and below 65520 * 1.5 in magnitude.
static inline void q2tp_encode_row(const float* w, int64_t cols, bool search, uint8_t* fields, uint8_t* params,
                                   uint8_t* codes) {
  const int64_t groups = cols / 32;
  const RowRange range = row_range(w, groups, 1.5f);
  float top = range.hi;
  if (search && range.hi > range.lo_value) {
    float best = f32_from_bits(0x7f800000u);
    static constexpr float kParts[] = {1.0f, 0.9f, 0.8f, 0.7f};
    for (const float part : kParts) {
      const float candidate = range.lo_value + (range.hi - range.lo_value) * part;
      const float error = q2tp_trial(w, groups, range, candidate);
      if (error < best) {
        best = error;
        top = candidate;
      }
    }
  }
  const uint16_t step = ladder_step(range, top, 30);
  const float step_value = f16_to_f32(step);
  float rungs[32];
  q2tp_rungs(range.lo, step, rungs);
  store_ladder(range, step, params);
  for (int64_t i = 0; i < rung_bytes(groups); ++i) codes[i] = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const float* group = w + 32 * g;
    float log, least;
    int rung = 0;
    if (group_log2(group, 1.5f, &log)) {
      rung = q2tp_nominal(log, range, step_value);
      const int best = search ? q2tp_best(group, rungs, rung > 2 ? rung - 2 : 1, rung + 1, &least) : rung;
      if (best >= 0) rung = best;
    }
    store_rung(codes, g, rung);
    const float inverse = rungs[rung] > 0 ? 1 / rungs[rung] : 0.0f;
    for (int k = 0; k < 8; ++k) {
      int byte = 0;
      for (int j = 0; j < 4; ++j) byte |= static_cast<int>(q2tp_field(group[4 * k + j], inverse)) << (2 * j);
      fields[8 * g + k] = static_cast<uint8_t>(byte);
    }
  }
}

}  // namespace h3
