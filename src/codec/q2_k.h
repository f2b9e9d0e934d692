// GGML Q2_K: blocks of 256 in runs of 16, y = (d * (s & 15)) * q - m * (s >> 4) (spec formats D.3). Block: u8 s[16],
// u8 q[64], f16 d, f16 m.
#pragma once

#include <cstdint>

#include "codec/packed.h"

namespace h3 {

H3_HD static inline int64_t q2_k_bytes(int64_t rows, int64_t cols) { return rows * (cols / 256 * 84); }

H3_HD static inline void q2_k_decode(const PackedRows& m, const float*, int64_t row, int64_t col, int, float* out) {
  const uint8_t* p = m.data + (row * m.cols + col) / 256 * 84;
  const int e = static_cast<int>(col % 256);
  const int half = e / 128, quarter = e % 128 / 32, lane = e % 32;
  const int s = p[8 * half + 2 * quarter + lane / 16];
  const float scale = load_f16(p + 80) * static_cast<float>(s & 15);
  const float least = load_f16(p + 82) * static_cast<float>(s >> 4);
  const uint8_t* q = p + 16 + 32 * half + lane;
  for (int i = 0; i < 8; ++i) out[i] = scale * static_cast<float>(q[i] >> (2 * quarter) & 3) - least;
}

}  // namespace h3
