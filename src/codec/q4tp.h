// q4tp: four bits a weight, 16 levels -8 .. 7 times the scale of a rung (spec formats A.5). Byte k of a group holds
// elements 2k (low nibble) and 2k + 1 (high nibble).
#pragma once

#include <cstdint>

#include "codec/ladder.h"

namespace h3 {

H3_HD static inline int64_t q4tp_bytes(int64_t rows, int64_t cols) { return ladder_bytes(rows, cols, 16); }

H3_HD static inline void q4tp_begin(const PackedRows& m, int64_t row, float* table) {
  const uint8_t* params = ladder_params(m, row, 16);
  fill_ladder(load_u16(params), load_u16(params + 2), table);
}

H3_HD static inline void q4tp_decode(const PackedRows& m, const float* table, int64_t row, int64_t col, int,
                                     float* out) {
  const int64_t groups = m.cols / 32;
  const float scale = table[rung_of(m, row, col / 32, 16)];
  const uint32_t nibbles = load_u32_plane(m.data + row * groups * 16 + col / 2);
  for (int i = 0; i < 8; ++i) out[i] = static_cast<float>(static_cast<int>(nibbles >> (4 * i) & 15u) - 8) * scale;
}

// ---- encoding ----

static inline float q4tp_level(float w, float inverse) { return round_even(clamp_to(w * inverse, -8, 7)); }

// The rung around `nominal` with the least squared error over the group, the first of equals; nominal when none is
// usable. Candidates nominal - 2 .. nominal + 1: the window is not symmetric.
static inline int q4tp_search(const float* w, const float* rungs, int nominal) {
  float scale[4], inverse[4], error[4] = {};
  for (int k = 0; k < 4; ++k) {
    const int c = nominal - 2 + k;
    scale[k] = c < 0 || c > 31 ? 0.0f : rungs[c];
    inverse[k] = scale[k] > 0 ? 1 / scale[k] : 0.0f;
  }
  for (int i = 0; i < 32; ++i) {
    for (int k = 0; k < 4; ++k) {
      const float d = w[i] - q4tp_level(w[i], inverse[k]) * scale[k];
      error[k] += d * d;
    }
  }
  int best = -1;
  for (int k = 0; k < 4; ++k) {
    if (scale[k] > 0 && (best < 0 || error[k] < error[best])) best = k;
  }
  return best < 0 ? nominal : nominal - 2 + best;
}

// One row into its places in the three planes. Weights are finite and below 65520 * 7 in magnitude.
static inline void q4tp_encode_row(const float* w, int64_t cols, bool search, uint8_t* nibbles, uint8_t* params,
                                   uint8_t* codes) {
  const int64_t groups = cols / 32;
  const RowRange range = row_range(w, groups, 7);
  const uint16_t step = ladder_step(range, range.hi, 31);
  const float step_value = f16_to_f32(step);
  float rungs[32];
  fill_ladder(range.lo, step, rungs);
  store_ladder(range, step, params);
  for (int64_t i = 0; i < rung_bytes(groups); ++i) codes[i] = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const float* group = w + 32 * g;
    float log;
    int rung = 0;
    if (group_log2(group, 7, &log) && step_value > 0) {
      rung = static_cast<int>(round_even(clamp_to((log - range.lo_value) / step_value, 0, 31)));
      if (search) rung = q4tp_search(group, rungs, rung);
    }
    store_rung(codes, g, rung);
    const float inverse = rungs[rung] > 0 ? 1 / rungs[rung] : 0.0f;
    for (int k = 0; k < 16; ++k) {
      const int low = static_cast<int>(q4tp_level(group[2 * k], inverse)) + 8;
      const int high = static_cast<int>(q4tp_level(group[2 * k + 1], inverse)) + 8;
      nibbles[16 * g + k] = static_cast<uint8_t>(low | high << 4);
    }
  }
}

}  // namespace h3
