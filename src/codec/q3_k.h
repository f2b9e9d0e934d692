// GGML Q3_K: blocks of 256 in runs of 16, y = (d * s) * q (spec formats D.3). Block: u8 mask[32] (a clear bit takes 4
// from q), u8 q[64], u8 s[12] (16 scales of six bits less 32), f16 d.
#pragma once

#include <cstdint>

#include "codec/packed.h"

namespace h3 {

H3_HD static inline int64_t q3_k_bytes(int64_t rows, int64_t cols) { return rows * (cols / 256 * 110); }

// Four low bits in s[0 .. 8), two high bits in s[8 .. 12).
H3_HD static inline int q3_k_scale(const uint8_t* s, int i) {
  const int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
  return (low | (s[8 + i % 4] >> (2 * (i / 4)) & 3) << 4) - 32;
}

H3_HD static inline void q3_k_decode(const PackedRows& m, const float*, int64_t row, int64_t col, int, float* out) {
  const uint8_t* p = m.data + (row * m.cols + col) / 256 * 110;
  const int e = static_cast<int>(col % 256);
  const int half = e / 128, quarter = e % 128 / 32, lane = e % 32;
  const float scale = load_f16(p + 108) * static_cast<float>(q3_k_scale(p + 96, e / 16));
  const uint8_t *mask = p + lane, *q = p + 32 + 32 * half + lane;
  for (int i = 0; i < 8; ++i) {
    const int level = (q[i] >> (2 * quarter) & 3) - ((mask[i] >> (4 * half + quarter) & 1) != 0 ? 0 : 4);
    out[i] = scale * static_cast<float>(level);
  }
}

}  // namespace h3
