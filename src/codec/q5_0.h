// GGML Q5_0: blocks of 32, y = (n - 16) * d (spec formats D.3). Block: f16 d, u32 fifth bits, u8 q[16] with nibbles as
// Q4_0; bit j of the fifth bits belongs to element j.
#pragma once

#include <cstdint>

#include "codec/packed.h"

namespace h3 {

H3_HD static inline int64_t q5_0_bytes(int64_t rows, int64_t cols) { return rows * (cols / 32 * 22); }

H3_HD static inline void q5_0_decode(const PackedRows& m, const float*, int64_t row, int64_t col, int, float* out) {
  const uint8_t* p = m.data + (row * m.cols + col) / 32 * 22;
  const int e = static_cast<int>(col % 32);
  const float d = load_f16(p);
  const uint32_t fifth = load_u32(p + 2) >> e;
  const int shift = e < 16 ? 0 : 4;
  for (int i = 0; i < 8; ++i) {
    const int n = (p[6 + e % 16 + i] >> shift & 15) | static_cast<int>(fifth >> i & 1u) << 4;
    out[i] = static_cast<float>(n - 16) * d;
  }
}

}  // namespace h3
