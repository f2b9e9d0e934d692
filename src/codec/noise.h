// Weights that need no file: element i is a hash of (seed, i), uniform in center +- amplitude. For benchmarks and
// memory tests at release size; the same values on every back end.
#pragma once

#include <cstdint>

#include "codec/packed.h"

namespace h3 {

struct NoiseWeights {  // the payload of a tensor in this format
  float center = 0, amplitude = 1;
  uint64_t seed = 0;
};

H3_HD static inline float noise_value(const NoiseWeights& noise, int64_t index) {
  const uint64_t i = static_cast<uint64_t>(index);
  uint32_t h = static_cast<uint32_t>(i) * 0x9e3779b1u ^ static_cast<uint32_t>(i >> 32) * 0x85ebca77u ^
               static_cast<uint32_t>(noise.seed) ^ static_cast<uint32_t>(noise.seed >> 32) * 0xc2b2ae3du;
  h ^= h >> 16;
  h *= 0x7feb352du;
  h ^= h >> 15;
  h *= 0x846ca68bu;
  h ^= h >> 16;
  return noise.center + noise.amplitude * (static_cast<float>(static_cast<int32_t>(h)) * 4.656612873077393e-10f);
}

H3_HD static inline int64_t noise_bytes(int64_t, int64_t) { return static_cast<int64_t>(sizeof(NoiseWeights)); }

H3_HD static inline void noise_decode(const PackedRows& m, const float*, int64_t row, int64_t col, int n, float* out) {
  NoiseWeights noise;
  noise.center = load_f32(m.data);
  noise.amplitude = load_f32(m.data + 4);
  noise.seed = load_u64(m.data + 8);
  for (int i = 0; i < n; ++i) out[i] = noise_value(noise, row * m.cols + col + i);
}

}  // namespace h3
