// q8_2f: int8 with an f16 scale per row and one per column, w = (q * row) * col (spec formats A.4, A.7). Payload:
// i8 [rows, cols], f16 row scales [rows], f16 column scales [cols].
#pragma once

#include <cstdint>

#include "codec/half_math.h"
#include "codec/packed.h"

namespace h3 {

H3_HD static inline int64_t q8_2f_bytes(int64_t rows, int64_t cols) { return rows * (cols + 2) + 2 * cols; }

H3_HD static inline void q8_2f_decode(const PackedRows& m, const float*, int64_t row, int64_t col, int n, float* out) {
  const uint8_t* scales = m.data + m.rows * m.cols;
  const float scale = load_f16(scales + 2 * row);
  const uint8_t* column = scales + 2 * (m.rows + col);
  const uint8_t* p = m.data + row * m.cols + col;
  for (int i = 0; i < n; ++i) {
    out[i] = static_cast<float>(static_cast<int8_t>(p[i])) * scale * load_f16(column + 2 * i);
  }
}

// The column scales are known (the packer's job: they come from all rows).
static inline void q8_2f_encode_row(const float* w, int64_t cols, const uint8_t* column, uint8_t* codes,
                                    uint8_t* scale) {
  float top = 0;
  for (int64_t i = 0; i < cols; ++i) {
    const float v = w[i] / load_f16(column + 2 * i), a = v < 0 ? -v : v;
    if (a > top) top = a;
  }
  const uint16_t bits = scale_to_f16_cmf((top > 1e-12f ? top : 1e-12f) / 127);
  const float s = f16_to_f32(bits);
  store_u16(scale, bits);
  for (int64_t i = 0; i < cols; ++i) {
    const float q = round_even(clamp_to(w[i] / load_f16(column + 2 * i) / s, -127, 127));
    codes[i] = static_cast<uint8_t>(static_cast<int8_t>(q));
  }
}

}  // namespace h3
