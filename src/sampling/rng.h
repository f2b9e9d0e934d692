// Random numbers, bit for bit as the public implementations draw them (spec dit 5).
#pragma once

#include <cstdint>
#include <vector>

namespace h3 {

// torch's CPU generator: MT19937, Box-Muller with the Cephes polynomials and FMA (spec dit 5.2).
class TorchGenerator {
 public:
  explicit TorchGenerator(uint64_t seed);  // the low 32 bits count

  // n standard normals in f32. Fewer than 16 use the pairwise double path, whose spare value survives calls.
  void randn(float* out, int64_t n);
  std::vector<float> randn(int64_t n);
  float uniform();  // [0, 1), 24 bits
  uint32_t next_u32();

 private:
  void twist();
  double uniform_double();  // [0, 1), 53 bits
  float scalar_normal();

  uint32_t state_[624];
  int position_ = 624;
  bool has_cached_ = false;
  double cached_ = 0;
};

// cortiq's generator: SplitMix64 with Box-Muller in double (spec dit 5.3).
class SplitMixGenerator {
 public:
  explicit SplitMixGenerator(uint64_t seed) : state_(seed) {}
  void randn(float* out, int64_t n);
  std::vector<float> randn(int64_t n);
  uint64_t next_u64();

 private:
  double uniform();
  uint64_t state_;
};

// stable-diffusion.cpp's default generator: Philox4x32-10, one call index per randn (spec dit 5.3).
class PhiloxGenerator {
 public:
  explicit PhiloxGenerator(uint64_t seed) : seed_(seed) {}
  void randn(float* out, int64_t n);
  std::vector<float> randn(int64_t n);

 private:
  uint64_t seed_;
  uint32_t call_ = 0;
};

}  // namespace h3
