// w4a8 (`asym_w4a8_int8` of ComfyUI): four-bit codes into a codebook, blocks of 16 with an e4m3 scale, rounded to the
// int8 grid that the matmul runs on, and a f32 scale per row; the rows are rotated (spec formats C.4). Payload:
// u8 [rows, cols / 2], the low nibble first. scale: e4m3 [rows, cols / 16]; scale2: f32 [rows]; codebook: f32 [16], or
// none: the levels are then code - 8. Decoding gives the rotated values.
#pragma once

#include <cstdint>

#include "codec/float8.h"
#include "codec/packed.h"

namespace h3 {

H3_HD static inline int64_t w4a8_bytes(int64_t rows, int64_t cols) { return rows * (cols / 2); }

// The integer that the reference multiplies by.
H3_HD static inline float w4a8_grid(const PackedRows& m, int code, float block_scale) {
  const float level = m.codebook != nullptr ? load_f32(m.codebook + 4 * code) : static_cast<float>(code - 8);
  return round_even(clamp_to(level * block_scale, -127, 127));
}

H3_HD static inline void w4a8_decode(const PackedRows& m, const float*, int64_t row, int64_t col, int, float* out) {
  const float block_scale = e4m3_to_f32(m.scale[row * (m.cols / 16) + col / 16]);
  const float scale = load_f32(m.scale2 + 4 * row);
  const uint8_t* p = m.data + row * (m.cols / 2) + col / 2;
  for (int i = 0; i < 8; ++i) out[i] = w4a8_grid(m, p[i / 2] >> (4 * (i % 2)) & 15, block_scale) * scale;
}

}  // namespace h3
