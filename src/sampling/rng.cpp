#include "sampling/rng.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace h3 {
namespace {

constexpr double kTwoPi = 6.283185307179586476925286766559;

// Cephes ln for normal positive x, contracted as torch's AVX2 build evaluates it; any other order moves bits.
float cephes_log(float x) {
  x = std::max(x, 0x1p-126f);
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  float e = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127) + 1.0f;
  x = std::bit_cast<float>((bits & 0x007fffffu) | 0x3f000000u);
  if (x < 0.707106781186547524f) {
    const float old = x;
    e -= 1.0f;
    x = (x - 1.0f) + old;
  } else {
    x = x - 1.0f;
  }
  constexpr float kCoefficient[] = {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
                                    -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f};
  const float z = x * x;
  float y = 7.0376836292e-2f;
  for (float c : kCoefficient) y = std::fma(y, x, c);
  y = y * x;
  y = std::fma(y, z, e * -2.12194440e-4f);
  y = std::fma(-z, 0.5f, y);
  return std::fma(e, 0.693359375f, x + y);
}

// Cephes sine and cosine for x >= 0, contracted likewise.
void cephes_sincos(float x, float& sine, float& cosine) {
  int32_t j = static_cast<int32_t>(x * 1.27323954473516f);
  j = (j + 1) & ~1;
  const float y = static_cast<float>(j);
  x = std::fma(y, -0.78515625f, x);
  x = std::fma(y, -2.4187564849853515625e-4f, x);
  x = std::fma(y, -3.77489497744594108e-8f, x);
  const float z = x * x;
  float a = 2.443315711809948e-5f;
  a = std::fma(a, z, -1.388731625493765e-3f);
  a = std::fma(a, z, 4.166664568298827e-2f);
  a = a * z;
  a = std::fma(a, z, -(z * 0.5f));
  a = a + 1.0f;
  float b = -1.9515295891e-4f;
  b = std::fma(b, z, 8.3321608736e-3f);
  b = std::fma(b, z, -1.6666654611e-1f);
  b = b * z;
  b = std::fma(b, x, x);
  sine = (j & 2) ? a : b;
  cosine = (j & 2) ? b : a;
  if (j & 4) sine = -sine;
  if (~(j - 2) & 4) cosine = -cosine;
}

// 16 uniforms in place to 16 normals.
void box_muller16(float* d) {
  for (int j = 0; j < 8; ++j) {
    const float radius = std::sqrt(-2.0f * cephes_log(1.0f - d[j]));
    float sine, cosine;
    cephes_sincos(static_cast<float>(kTwoPi) * d[j + 8], sine, cosine);
    d[j] = radius * cosine;
    d[j + 8] = radius * sine;
  }
}

template <typename Generator>
std::vector<float> draw(Generator& generator, int64_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  generator.randn(out.data(), n);
  return out;
}

}  // namespace

TorchGenerator::TorchGenerator(uint64_t seed) {
  state_[0] = static_cast<uint32_t>(seed);
  for (uint32_t j = 1; j < 624; ++j) state_[j] = 1812433253u * (state_[j - 1] ^ (state_[j - 1] >> 30)) + j;
}

void TorchGenerator::twist() {
  for (int j = 0; j < 624; ++j) {
    const uint32_t y = (state_[j] & 0x80000000u) | (state_[(j + 1) % 624] & 0x7fffffffu);
    state_[j] = state_[(j + 397) % 624] ^ (y >> 1) ^ ((y & 1u) ? 0x9908b0dfu : 0u);
  }
  position_ = 0;
}

uint32_t TorchGenerator::next_u32() {
  if (position_ == 624) twist();
  uint32_t y = state_[position_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

float TorchGenerator::uniform() { return static_cast<float>(next_u32() & 0xffffffu) * 0x1p-24f; }

double TorchGenerator::uniform_double() {
  const uint64_t high = next_u32();
  const uint64_t value = (high << 32) | next_u32();
  return static_cast<double>(value & ((uint64_t{1} << 53) - 1)) * 0x1p-53;
}

float TorchGenerator::scalar_normal() {
  if (has_cached_) {
    has_cached_ = false;
    return static_cast<float>(cached_);
  }
  const double u1 = uniform_double(), u2 = uniform_double();
  const double radius = std::sqrt(-2.0 * std::log1p(-u2)), theta = kTwoPi * u1;
  cached_ = radius * std::sin(theta);
  has_cached_ = true;
  return static_cast<float>(radius * std::cos(theta));
}

void TorchGenerator::randn(float* out, int64_t n) {
  if (n < 16) {
    for (int64_t i = 0; i < n; ++i) out[i] = scalar_normal();
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i] = uniform();
  for (int64_t i = 0; i + 16 <= n; i += 16) box_muller16(out + i);
  if (n % 16 != 0) {  // the last 16 are drawn again; they overwrite part of the last full group
    for (int64_t i = n - 16; i < n; ++i) out[i] = uniform();
    box_muller16(out + n - 16);
  }
}

std::vector<float> TorchGenerator::randn(int64_t n) { return draw(*this, n); }

uint64_t SplitMixGenerator::next_u64() {
  state_ += 0x9E3779B97F4A7C15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

double SplitMixGenerator::uniform() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }

void SplitMixGenerator::randn(float* out, int64_t n) {
  for (int64_t i = 0; i < n; i += 2) {
    const double a = uniform(), b = uniform();
    const double radius = std::sqrt(-2.0 * std::log(std::max(a, 1e-300))), theta = kTwoPi * b;
    out[i] = static_cast<float>(radius * std::cos(theta));
    if (i + 1 < n) out[i + 1] = static_cast<float>(radius * std::sin(theta));
  }
}

std::vector<float> SplitMixGenerator::randn(int64_t n) { return draw(*this, n); }

void PhiloxGenerator::randn(float* out, int64_t n) {
  constexpr float kScale = 2.3283064e-10f, kAngle = 2.3283064e-10f * 6.2831855f;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t c[4] = {call_, 0, static_cast<uint32_t>(i), 0};
    uint32_t key[2] = {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)};
    for (int round = 0; round < 10; ++round) {
      const uint64_t v1 = static_cast<uint64_t>(c[0]) * 0xD2511F53u, v2 = static_cast<uint64_t>(c[2]) * 0xCD9E8D57u;
      const uint32_t next[4] = {static_cast<uint32_t>(v2 >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(v2),
                                static_cast<uint32_t>(v1 >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(v1)};
      std::copy(next, next + 4, c);
      key[0] += 0x9E3779B9u;
      key[1] += 0xBB67AE85u;
    }
    const float u = static_cast<float>(c[0]) * kScale + kScale / 2;
    const float w = static_cast<float>(c[1]) * kAngle + kAngle / 2;
    out[i] = std::sqrt(-2.0f * std::log(u)) * std::sin(w);
  }
  ++call_;
}

std::vector<float> PhiloxGenerator::randn(int64_t n) { return draw(*this, n); }

}  // namespace h3
