// Random numbers, bit for bit as the public implementations draw them (dit.md 5).
#pragma once

#include <cstdint>
#include <vector>

namespace h3 {

// torch's CPU generator: MT19937, vectorised Box-Muller with the Cephes polynomials and FMA (dit.md 5.2).
class TorchGenerator {
 public:
  explicit TorchGenerator(uint64_t seed);  // the low 32 bits count
  // n standard normals in f32. Fewer than 16 use the pairwise double path with its one-value cache.
  void randn(float* out, int64_t n);
  std::vector<float> randn(int64_t n);
  uint32_t next_u32();

 private:
  void twist();
  double uniform_double();
  uint32_t state_[624];
  int position_ = 624;
  bool has_cached_ = false;
  double cached_ = 0;
};

// cortiq's generator: SplitMix64 with Box-Muller in double (dit.md 5.3).
class SplitMixGenerator {
 public:
  explicit SplitMixGenerator(uint64_t seed) : state_(seed) {}
  void randn(float* out, int64_t n);

 private:
  double uniform();
  uint64_t state_;
};

}  // namespace h3
