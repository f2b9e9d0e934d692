// GGML Q6_K: blocks of 256 in runs of 16, y = (d * s) * q (spec formats D.3). Block: u8 low[128], u8 high[64], i8
// s[16], f16 d.
#pragma once

#include <cstdint>

#include "codec/packed.h"

namespace h3 {

H3_HD static inline int64_t q6_k_bytes(int64_t rows, int64_t cols) { return rows * (cols / 256 * 210); }

H3_HD static inline void q6_k_decode(const PackedRows& m, const float*, int64_t row, int64_t col, int, float* out) {
  const uint8_t* p = m.data + (row * m.cols + col) / 256 * 210;
  const int e = static_cast<int>(col % 256);
  const int half = e / 128, quarter = e % 128 / 32, lane = e % 32;
  const int s = static_cast<int8_t>(p[192 + 8 * half + 2 * quarter + lane / 16]);
  const float scale = load_f16(p + 208) * static_cast<float>(s);
  const uint8_t *low = p + 64 * half + lane + 32 * (quarter & 1), *high = p + 128 + 32 * half + lane;
  const int shift = quarter < 2 ? 0 : 4;
  for (int i = 0; i < 8; ++i) {
    const int level = ((low[i] >> shift & 15) | (high[i] >> (2 * quarter) & 3) << 4) - 32;
    out[i] = scale * static_cast<float>(level);
  }
}

}  // namespace h3
