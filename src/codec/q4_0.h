// GGML Q4_0: blocks of 32, y = (n - 8) * d (spec formats D.3). Block: f16 d, u8 q[16]; the low nibbles are elements
// 0 .. 15, the high ones 16 .. 31.
#pragma once

#include <cstdint>

#include "codec/packed.h"

namespace h3 {

H3_HD static inline int64_t q4_0_bytes(int64_t rows, int64_t cols) { return rows * (cols / 32 * 18); }

H3_HD static inline void q4_0_decode(const PackedRows& m, const float*, int64_t row, int64_t col, int, float* out) {
  const uint8_t* p = m.data + (row * m.cols + col) / 32 * 18;
  const int e = static_cast<int>(col % 32);
  const float d = load_f16(p);
  const int shift = e < 16 ? 0 : 4;
  for (int i = 0; i < 8; ++i) out[i] = static_cast<float>((p[2 + e % 16 + i] >> shift & 15) - 8) * d;
}

}  // namespace h3
