// GGML Q5_K: Q4_K with a fifth bit (spec formats D.3). Block: f16 d, f16 m, u8 pairs[12], u8 fifth[32], u8 q[128]; bit
// i of fifth[l] belongs to element 32 i + l.
#pragma once

#include <cstdint>

#include "codec/k_scales.h"
#include "codec/packed.h"

namespace h3 {

H3_HD static inline int64_t q5_k_bytes(int64_t rows, int64_t cols) { return rows * (cols / 256 * 176); }

H3_HD static inline void q5_k_decode(const PackedRows& m, const float*, int64_t row, int64_t col, int, float* out) {
  const uint8_t* p = m.data + (row * m.cols + col) / 256 * 176;
  const int e = static_cast<int>(col % 256);
  const int run = e / 32, lane = e % 32;
  const KPair pair = k_pair(p + 4, run);
  const float scale = load_f16(p) * static_cast<float>(pair.scale),
              least = load_f16(p + 2) * static_cast<float>(pair.least);
  const uint8_t *fifth = p + 16 + lane, *q = p + 48 + run / 2 * 32 + lane;
  const int shift = run % 2 == 0 ? 0 : 4;
  for (int i = 0; i < 8; ++i) {
    const int level = (q[i] >> shift & 15) | (fifth[i] >> run & 1) << 4;
    out[i] = scale * static_cast<float>(level) - least;
  }
}

}  // namespace h3
