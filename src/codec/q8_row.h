// q8_row: int8 with one f16 scale per row (spec formats A.4, A.7). Payload: i8 [rows, cols], f16 scale [rows].
#pragma once

#include <cstdint>

#include "codec/half_math.h"
#include "codec/packed.h"

namespace h3 {

H3_HD static inline int64_t q8_row_bytes(int64_t rows, int64_t cols) { return rows * (cols + 2); }

H3_HD static inline void q8_row_decode(const PackedRows& m, const float*, int64_t row, int64_t col, int n, float* out) {
  const float scale = load_f16(m.data + m.rows * m.cols + 2 * row);
  const uint8_t* p = m.data + row * m.cols + col;
  for (int i = 0; i < n; ++i) out[i] = static_cast<float>(static_cast<int8_t>(p[i])) * scale;
}

// One row: cols codes and the two bytes of the scale. Finite weights below 65520 * 127 in magnitude.
static inline void q8_row_encode_row(const float* w, int64_t cols, uint8_t* codes, uint8_t* scale) {
  float top = 0;
  for (int64_t i = 0; i < cols; ++i) {
    const float a = w[i] < 0 ? -w[i] : w[i];
    if (a > top) top = a;
  }
  const uint16_t bits = scale_to_f16_cmf(top / 127);
  const float s = f16_to_f32(bits);
  store_u16(scale, bits);
  for (int64_t i = 0; i < cols; ++i) {
    codes[i] = static_cast<uint8_t>(static_cast<int8_t>(round_even(clamp_to(w[i] / s, -128, 127))));
  }
}

}  // namespace h3
