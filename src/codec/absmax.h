// The largest magnitude among values that get one scale together.
#pragma once

#include <cstdint>

#include "codec/scalar.h"

namespace h3 {

// Of values[0], values[step], ..., as f32. The maximum of the magnitude bits taken as integers keeps a NaN, which a
// floating maximum may lose. 0 for none.
template <typename T>
static inline float absmax_of(const T* values, int64_t count, int64_t step = 1) {
  uint32_t top = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = f32_bits(static_cast<float>(values[i * step])) & 0x7fffffffu;
    if (bits > top) top = bits;
  }
  return f32_from_bits(top);
}

}  // namespace h3
