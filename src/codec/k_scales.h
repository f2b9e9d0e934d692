// Scales and minima of Q4_K and Q5_K: eight pairs of six bits in twelve bytes (spec formats D.3).
#pragma once

#include <cstdint>

#include "codec/scalar.h"

namespace h3 {

struct KPair {
  int scale, least;
};

H3_HD static inline KPair k_pair(const uint8_t* s, int i) {
  if (i < 4) return {s[i] & 63, s[i + 4] & 63};
  return {(s[i + 4] & 15) | (s[i - 4] >> 6) << 4, s[i + 4] >> 4 | (s[i] >> 6) << 4};
}

}  // namespace h3
