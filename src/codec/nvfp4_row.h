// One row of activations as NVFP4: the codes and block scales of codec/nvfp4.h, with an f32 factor of the row's own in
// the place of the tensor's, so that a row is the same whatever it is multiplied with. f32 arithmetic without fused
// multiply-adds on every back end: the codes agree exactly.
#pragma once

#include <cstdint>

#include "codec/absmax.h"
#include "codec/nvfp4.h"

namespace h3 {

// value ~ e2m1 * e4m3 * factor. A row with a NaN or Inf has the factor NaN, and so only NaN results; as in
// float8_row.h, the maximum is that of the magnitude bits taken as integers.
H3_HD static inline float nvfp4_row_factor(float absmax) {
  return f32_bits(absmax) < 0x7f800000u ? nvfp4_global(absmax) : f32_from_bits(0x7fc00000u);
}

// What its blocks are encoded with; 0, and so zeros, for rows below 1e-30 and for those that are not finite.
H3_HD static inline float nvfp4_row_global(float absmax) {
  return absmax >= 1e-30f && f32_bits(absmax) < 0x7f800000u ? nvfp4_global(absmax) : 0.0f;
}

// A row as it is multiplied: what its codes stand for. Short last blocks count as padded with zeros.
static inline void nvfp4_row_round(double* row, int64_t count) {
  const float absmax = absmax_of(row, count), global = nvfp4_row_global(absmax);
  const double factor = static_cast<double>(nvfp4_row_factor(absmax));
  for (int64_t first = 0; first < count; first += 16) {
    float values[16] = {};
    uint8_t codes[8];
    const int64_t n = count - first < 16 ? count - first : 16;
    for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(row[first + i]);
    const double scale = static_cast<double>(e4m3_to_f32(nvfp4_encode_block(values, global, codes))) * factor;
    for (int64_t i = 0; i < n; ++i) {
      row[first + i] = static_cast<double>(e2m1_to_f32(codes[i / 2] >> (4 * (1 - i % 2)) & 15)) * scale;
    }
  }
}

}  // namespace h3
