// int8_convrot (`int8_tensorwise` of ComfyUI): int8 of rotated rows with a f32 scale, one for the tensor or one per row
// (spec formats C.4). Decoding gives the rotated values; who asks for weights rotates them back (codec/rotation.h).
#pragma once

#include <cstdint>

#include "codec/absmax.h"
#include "codec/packed.h"
#include "codec/plain.h"
#include "codec/rotation.h"

namespace h3 {

H3_HD static inline int64_t int8_convrot_bytes(int64_t rows, int64_t cols) { return rows * cols; }

H3_HD static inline void int8_convrot_decode(const PackedRows& m, const float*, int64_t row, int64_t col, int n,
                                             float* out) {
  const float scale = row_scale(m, row);
  const uint8_t* p = m.data + row * m.cols + col;
  for (int i = 0; i < n; ++i) out[i] = static_cast<float>(static_cast<int8_t>(p[i])) * scale;
}

// Rows of weights and of activations alike, after rotation.
H3_HD static inline float int8_convrot_scale(float absmax) {
  const float scale = absmax / 127;
  return scale > 1e-30f ? scale : 1e-30f;
}

H3_HD static inline int8_t int8_convrot_quantise(float value, float scale) {
  return static_cast<int8_t>(round_even(clamp_to(value / scale, -128, 127)));
}

// A row of activations as its codes, which stand for themselves in `row`; returns their scale. A row with a NaN or Inf
// has the scale NaN, and so only NaN results.
static inline float int8_convrot_row(float* row, int64_t cols, int64_t rotation) {
  for (int64_t k = 0; k < cols; k += rotation) rotate_group(row + k, rotation);
  const float absmax = absmax_of(row, cols);
  const bool finite = f32_bits(absmax) < 0x7f800000u;
  const float scale = finite ? int8_convrot_scale(absmax) : f32_from_bits(0x7fc00000u);
  for (int64_t k = 0; k < cols; ++k) row[k] = finite ? int8_convrot_quantise(row[k], scale) : 0.0f;
  return scale;
}

}  // namespace h3
