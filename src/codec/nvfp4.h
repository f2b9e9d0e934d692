// NVFP4: e2m1 codes in blocks of 16 columns with an e4m3 scale, and one f32 scale for the tensor (spec formats C.5):
// w = e2m1[code] * (global * block). Payload: u8 [rows', cols' / 2] with rows and columns padded to 16, the EVEN column
// in the HIGH nibble. scale: e4m3, rows padded to 128 and blocks to 4, swizzled as the tensor cores read it.
// scale2: the global f32.
#pragma once

#include <cstdint>

#include "codec/float8.h"
#include "codec/packed.h"

namespace h3 {

H3_HD static inline int64_t round_up_to(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

H3_HD static inline int64_t nvfp4_row_bytes(int64_t cols) { return round_up_to(cols, 16) / 2; }

H3_HD static inline int64_t nvfp4_bytes(int64_t rows, int64_t cols) {
  return round_up_to(rows, 16) * nvfp4_row_bytes(cols);
}

H3_HD static inline int64_t nvfp4_scale_bytes(int64_t rows, int64_t cols) {
  return round_up_to(rows, 128) * round_up_to(round_up_to(cols, 16) / 16, 4);
}

// Where the scale of (row, block) lies in the swizzled plane.
H3_HD static inline int64_t nvfp4_scale_offset(int64_t row, int64_t block, int64_t cols) {
  const int64_t column_blocks = (round_up_to(cols, 16) / 16 + 3) / 4;
  return (row / 128 * column_blocks + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

H3_HD static inline float e2m1_to_f32(int code) {
  const int magnitude = code & 7;
  const float value = magnitude < 2 ? 0.5f * static_cast<float>(magnitude)
                                    : static_cast<float>(2 + (magnitude & 1)) *
                                          f32_from_bits(static_cast<uint32_t>(126 + (magnitude / 2 - 1)) << 23);
  return (code & 8) != 0 ? -value : value;
}

H3_HD static inline void nvfp4_decode(const PackedRows& m, const float*, int64_t row, int64_t col, int n, float* out) {
  const float global = load_f32(m.scale2);
  const float scale = global * e4m3_to_f32(m.scale[nvfp4_scale_offset(row, col / 16, m.cols)]);
  const uint8_t* p = m.data + row * nvfp4_row_bytes(m.cols);
  for (int i = 0; i < n; ++i) {
    const int64_t c = col + i;
    out[i] = e2m1_to_f32(p[c / 2] >> (4 * (1 - c % 2)) & 15) * scale;
  }
}

// ---- encoding ----

// Nearest, ties to the even code; the sign is kept, so a negative zero is code 8.
H3_HD static inline int f32_to_e2m1(float value) {
  const uint32_t bits = f32_bits(value);
  const float a = f32_from_bits(bits & 0x7fffffffu);
  const int code = a <= 0.25f   ? 0
                   : a < 0.75f  ? 1
                   : a <= 1.25f ? 2
                   : a < 1.75f  ? 3
                   : a <= 2.5f  ? 4
                   : a < 3.5f   ? 5
                   : a <= 5.0f  ? 6
                                : 7;
  return code | static_cast<int>(bits >> 28 & 8u);
}

H3_HD static inline float nvfp4_global(float absmax) { return absmax / 2688; }  // 448 * 6

// A block of 16 weights, short blocks padded with zeros by the caller: 8 bytes of codes and the scale.
H3_HD static inline uint8_t nvfp4_encode_block(const float* w, float global, uint8_t* codes) {
  float top = 0;
  for (int i = 0; i < 16; ++i) {
    const float a = w[i] < 0 ? -w[i] : w[i];
    if (a > top) top = a;
  }
  const float wanted = global > 0 ? top / 6 / global : 0.0f;
  const uint8_t scale = f32_to_e4m3(wanted < 448 ? wanted : 448.0f);
  const float step = global * e4m3_to_f32(scale);
  for (int k = 0; k < 8; ++k) {
    int pair[2] = {};
    for (int j = 0; j < 2; ++j) pair[j] = step != 0 ? f32_to_e2m1(clamp_to(w[2 * k + j] / step, -6, 6)) : 0;
    codes[k] = static_cast<uint8_t>(pair[0] << 4 | pair[1]);
  }
  return scale;
}

}  // namespace h3
