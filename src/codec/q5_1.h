// GGML Q5_1: blocks of 32, y = n * d + m (spec formats D.3). Block: f16 d, f16 m, u32 fifth bits, u8 q[16] as Q5_0.
#pragma once

#include <cstdint>

#include "codec/packed.h"

namespace h3 {

H3_HD static inline int64_t q5_1_bytes(int64_t rows, int64_t cols) { return rows * (cols / 32 * 24); }

H3_HD static inline void q5_1_decode(const PackedRows& m, const float*, int64_t row, int64_t col, int, float* out) {
  const uint8_t* p = m.data + (row * m.cols + col) / 32 * 24;
  const int e = static_cast<int>(col % 32);
  const float d = load_f16(p), least = load_f16(p + 2);
  const uint32_t fifth = load_u32(p + 4) >> e;
  const int shift = e < 16 ? 0 : 4;
  for (int i = 0; i < 8; ++i) {
    const int n = (p[8 + e % 16 + i] >> shift & 15) | static_cast<int>(fifth >> i & 1u) << 4;
    out[i] = static_cast<float>(n) * d + least;
  }
}

}  // namespace h3
