// GGML Q4_K: blocks of 256 in runs of 32, y = (d * scale) * q - m * least (spec formats D.3). Block: f16 d, f16 m,
// u8 pairs[12], u8 q[128]; of each 64 elements the first half are low nibbles.
#pragma once

#include <cstdint>

#include "codec/k_scales.h"
#include "codec/packed.h"

namespace h3 {

H3_HD static inline int64_t q4_k_bytes(int64_t rows, int64_t cols) { return rows * (cols / 256 * 144); }

H3_HD static inline void q4_k_decode(const PackedRows& m, const float*, int64_t row, int64_t col, int, float* out) {
  const uint8_t* p = m.data + (row * m.cols + col) / 256 * 144;
  const int e = static_cast<int>(col % 256);
  const KPair pair = k_pair(p + 4, e / 32);
  const float scale = load_f16(p) * static_cast<float>(pair.scale),
              least = load_f16(p + 2) * static_cast<float>(pair.least);
  const uint8_t* q = p + 16 + e / 64 * 32 + e % 32;
  const int shift = e % 64 < 32 ? 0 : 4;
  for (int i = 0; i < 8; ++i) out[i] = scale * static_cast<float>(q[i] >> shift & 15) - least;
}

}  // namespace h3
