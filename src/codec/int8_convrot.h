// int8_convrot (`int8_tensorwise` of ComfyUI): int8 of rotated rows with a f32 scale, one for the tensor or one per row
// (spec formats C.4). Decoding gives the rotated values; who asks for weights rotates them back (codec/rotation.h).
#pragma once

#include <cstdint>

#include "codec/packed.h"
#include "codec/plain.h"

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

}  // namespace h3
