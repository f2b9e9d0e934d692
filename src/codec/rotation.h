// The rotation of ConvRot formats: a Hadamard matrix of a power of four, H_G = (H4 x ... x H4) / sqrt(G), symmetric and
// its own inverse, over consecutive groups of G columns (spec formats C.4).
#pragma once

#include <cstdint>

#include "codec/scalar.h"

namespace h3 {

enum : int32_t { kMaxRotation = 4096 };  // files have 256

// One radix-4 butterfly: elements i, i + stride, i + 2 stride, i + 3 stride.
H3_HD static inline void rotate_four(float* x, int64_t i, int64_t stride) {
  const float a = x[i], b = x[i + stride], c = x[i + 2 * stride], d = x[i + 3 * stride];
  x[i] = (a + b) + (c - d);
  x[i + stride] = (a + b) - (c - d);
  x[i + 2 * stride] = (a - b) + (c + d);
  x[i + 3 * stride] = (b - a) + (c + d);
}

// 1 / sqrt(group), a power of two.
H3_HD static inline float rotation_factor(int64_t group) {
  float factor = 1;
  for (; group > 1; group /= 4) factor *= 0.5f;
  return factor;
}

// x[0 .. group) becomes x H.
H3_HD static inline void rotate_group(float* x, int64_t group) {
  for (int64_t stride = 1; stride < group; stride *= 4) {
    for (int64_t i = 0; i < group; i += 4 * stride) {
      for (int64_t j = i; j < i + stride; ++j) rotate_four(x, j, stride);
    }
  }
  const float factor = rotation_factor(group);
  for (int64_t i = 0; i < group; ++i) x[i] *= factor;
}

}  // namespace h3
