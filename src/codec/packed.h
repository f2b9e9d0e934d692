// A matrix of packed rows as the codecs see it, on the host or on a card. Every weight format has one header here with
// three functions, found by name (quant/formats.h):
//   int64_t NAME_bytes(rows, cols)                        bytes of the payload
//   void NAME_begin(m, row, table)                        per-row values that decode wants (formats with a table)
//   void NAME_decode(m, table, row, col, n, out)          columns [col, col + n) of a row, within a multiple of 8
// Formats with blocks of columns are always asked for n = 8.
#pragma once

#include <cstdint>

#include "codec/scalar.h"

namespace h3 {

struct PackedRows {
  const uint8_t* data = nullptr;   // the payload; its planes are described by the codec
  const uint8_t* scale = nullptr;  // side tensors of the formats that have them
  const uint8_t* scale2 = nullptr;
  const uint8_t* codebook = nullptr;
  const uint8_t* pre_scale = nullptr;  // f32 [cols]: the input is multiplied by it, so the effective column is, too
  int64_t rows = 0, cols = 0;
  int32_t rotation = 0;     // columns of a rotation group; 0 = the rows are not rotated
  bool row_scales = false;  // `scale` has one element per row, not one in all
};

// Checkpoints promise no alignment.
H3_HD static inline uint16_t load_u16(const uint8_t* p) {
  return static_cast<uint16_t>(p[0] | static_cast<uint32_t>(p[1]) << 8);
}

H3_HD static inline uint32_t load_u32(const uint8_t* p) {
  return static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8 | static_cast<uint32_t>(p[2]) << 16 |
         static_cast<uint32_t>(p[3]) << 24;
}

H3_HD static inline uint64_t load_u64(const uint8_t* p) {
  return load_u32(p) | static_cast<uint64_t>(load_u32(p + 4)) << 32;
}

H3_HD static inline float load_f32(const uint8_t* p) { return f32_from_bits(load_u32(p)); }

H3_HD static inline float load_f16(const uint8_t* p) { return f16_to_f32(load_u16(p)); }

// For planes whose rows are multiples of 4 bytes: back ends keep such planes aligned on the card.
H3_HD static inline uint32_t load_u32_plane(const uint8_t* p) {
#ifdef __CUDA_ARCH__
  return *reinterpret_cast<const uint32_t*>(p);
#else
  return load_u32(p);
#endif
}

static inline void store_u16(uint8_t* p, uint16_t value) {
  p[0] = static_cast<uint8_t>(value);
  p[1] = static_cast<uint8_t>(value >> 8);
}

static inline void store_f32(uint8_t* p, float value) {
  const uint32_t bits = f32_bits(value);
  for (int i = 0; i < 4; ++i) p[i] = static_cast<uint8_t>(bits >> (8 * i));
}

H3_HD static inline float clamp_to(float value, float low, float high) {
  return value < low ? low : value > high ? high : value;
}

// To the nearest integer, ties to even; |value| < 2^22. NaN stays NaN.
H3_HD static inline float round_even(float value) {
  const float magic = 12582912.0f;  // 1.5 * 2^23
  return (value + magic) - magic;
}

}  // namespace h3
