// GGML Q4_1: blocks of 32, y = n * d + m (spec formats D.3). Block: f16 d, f16 m, u8 q[16] with nibbles as Q4_0.
#pragma once

#include <cstdint>

#include "codec/packed.h"

namespace h3 {

H3_HD static inline int64_t q4_1_bytes(int64_t rows, int64_t cols) { return rows * (cols / 32 * 20); }

H3_HD static inline void q4_1_decode(const PackedRows& m, const float*, int64_t row, int64_t col, int, float* out) {
  const uint8_t* p = m.data + (row * m.cols + col) / 32 * 20;
  const int e = static_cast<int>(col % 32);
  const float d = load_f16(p), least = load_f16(p + 2);
  const int shift = e < 16 ? 0 : 4;
  for (int i = 0; i < 8; ++i) out[i] = static_cast<float>(p[4 + e % 16 + i] >> shift & 15) * d + least;
}

}  // namespace h3
