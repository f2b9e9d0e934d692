// Formats without packing: one number per column. Eight-bit floats may have a scale, one for the tensor or one per row
// (f32): value = number * scale (spec formats C.3).
#pragma once

#include <cstdint>

#include "codec/float8.h"
#include "codec/packed.h"

namespace h3 {

// The scale of a row of the formats with an optional `scale` plane.
H3_HD static inline float row_scale(const PackedRows& m, int64_t row) {
  return m.scale == nullptr ? 1.0f : load_f32(m.scale + (m.row_scales ? 4 * row : 0));
}

H3_HD static inline float f64_at(const uint8_t* p) {
  union {
    uint64_t u;
    double d;
  } pun = {load_u64(p)};
  return static_cast<float>(pun.d);
}

#define H3_PLAIN_CODEC(NAME, WIDTH, VALUE)                                                                   \
  H3_HD static inline int64_t NAME##_bytes(int64_t rows, int64_t cols) { return rows * cols * (WIDTH); }     \
  H3_HD static inline void NAME##_decode(const PackedRows& m, const float*, int64_t row, int64_t col, int n, \
                                         float* out) {                                                       \
    const uint8_t* first = m.data + (row * m.cols + col) * (WIDTH);                                          \
    for (int i = 0; i < n; ++i) {                                                                            \
      const uint8_t* p = first + i * (WIDTH);                                                                \
      out[i] = VALUE;                                                                                        \
    }                                                                                                        \
  }

H3_PLAIN_CODEC(f32, 4, load_f32(p))
H3_PLAIN_CODEC(bf16, 2, bf16_to_f32(load_u16(p)))
H3_PLAIN_CODEC(f16, 2, load_f16(p))
H3_PLAIN_CODEC(f64, 8, f64_at(p))
H3_PLAIN_CODEC(i64, 8, static_cast<float>(static_cast<int64_t>(load_u64(p))))
H3_PLAIN_CODEC(i32, 4, static_cast<float>(static_cast<int32_t>(load_u32(p))))
H3_PLAIN_CODEC(i16, 2, static_cast<float>(static_cast<int16_t>(load_u16(p))))
H3_PLAIN_CODEC(i8, 1, static_cast<float>(static_cast<int8_t>(*p)))
H3_PLAIN_CODEC(u64, 8, static_cast<float>(load_u64(p)))
H3_PLAIN_CODEC(u32, 4, static_cast<float>(load_u32(p)))
H3_PLAIN_CODEC(u16, 2, static_cast<float>(load_u16(p)))
H3_PLAIN_CODEC(u8, 1, static_cast<float>(*p))
H3_PLAIN_CODEC(boolean, 1, *p != 0 ? 1.0f : 0.0f)
H3_PLAIN_CODEC(f8_e4m3, 1, e4m3_to_f32(*p) * row_scale(m, row))
H3_PLAIN_CODEC(f8_e5m2, 1, e5m2_to_f32(*p) * row_scale(m, row))
H3_PLAIN_CODEC(f8_e8m0, 1, e8m0_to_f32(*p))

#undef H3_PLAIN_CODEC

}  // namespace h3
