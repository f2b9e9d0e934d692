// GGML Q8_0: blocks of 32, y = q * d (spec formats D.3). Block: f16 d, i8 q[32].
#pragma once

#include <cstdint>

#include "codec/packed.h"

namespace h3 {

H3_HD static inline int64_t q8_0_bytes(int64_t rows, int64_t cols) { return rows * (cols / 32 * 34); }

H3_HD static inline void q8_0_decode(const PackedRows& m, const float*, int64_t row, int64_t col, int, float* out) {
  const uint8_t* p = m.data + (row * m.cols + col) / 32 * 34;
  const int e = static_cast<int>(col % 32);
  const float d = load_f16(p);
  for (int i = 0; i < 8; ++i) out[i] = static_cast<float>(static_cast<int8_t>(p[2 + e + i])) * d;
}

}  // namespace h3
