// torchaudio's windowed-sinc resampler with its defaults: Hann window, width 6, rolloff 0.99 (spec vae 13).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "model/vae/audio_vae.h"

namespace h3 {
namespace {

constexpr double kPi = 3.14159265358979323846, kLobes = 6, kRolloff = 0.99;
constexpr int kMaxRate = 1000000;

// The taps of one output phase: weights of the inputs first, first + 1, ... of its block.
struct Phase {
  int64_t first = 0;
  std::vector<float> weights;
};

// Phase j of n: input offsets where the window has not closed. Outside it the reference's weights are below 1e-32.
Phase make_phase(int64_t o, int64_t n, int64_t j) {
  const double base = static_cast<double>(std::min(o, n)) * kRolloff;
  // The reference rounds the phase to f32 before it works in f64.
  const double phase = static_cast<float>(static_cast<float>(-j) / static_cast<float>(n));
  const int64_t width = static_cast<int64_t>(std::ceil(kLobes * static_cast<double>(o) / base));
  Phase taps;
  // |t| < kLobes bounds the offset; the kernel itself spans [-width, width + o).
  const double centre = -phase * static_cast<double>(o), reach = kLobes / base * static_cast<double>(o) + 1;
  const int64_t begin = std::max(-width, static_cast<int64_t>(std::floor(centre - reach)));
  const int64_t end = std::min(width + o, static_cast<int64_t>(std::ceil(centre + reach)) + 1);
  taps.first = begin;
  for (int64_t i = begin; i < end; ++i) {
    const double position = (static_cast<double>(i) / static_cast<double>(o) + phase) * base;
    const double t = std::clamp(position, -kLobes, kLobes);
    const double hann = std::cos(t * kPi / kLobes / 2), window = hann * hann, angle = t * kPi;
    const double sinc = angle == 0 ? 1 : std::sin(angle) / angle;
    taps.weights.push_back(static_cast<float>(sinc * (window * (base / static_cast<double>(o)))));
  }
  return taps;
}

}  // namespace

std::vector<float> resample_audio(const float* samples, int64_t count, int from_rate, int to_rate) {
  if (from_rate < 1 || to_rate < 1 || from_rate > kMaxRate || to_rate > kMaxRate) {
    fail(Code::data, "cannot resample from %d to %d Hz; 1 to %d Hz are allowed", from_rate, to_rate, kMaxRate);
  }
  if (from_rate == to_rate) return std::vector<float>(samples, samples + count);
  const int64_t divisor = std::gcd(from_rate, to_rate), o = from_rate / divisor, n = to_rate / divisor;
  const int64_t total = (n * count + o - 1) / o;
  std::vector<float> out(static_cast<size_t>(total));
  for (int64_t j = 0; j < std::min(n, total); ++j) {
    const Phase taps = make_phase(o, n, j);
    const int64_t length = static_cast<int64_t>(taps.weights.size());
    for (int64_t m = 0; m * n + j < total; ++m) {
      const int64_t start = m * o + taps.first;  // may lie before the first sample: those are zero
      const int64_t begin = std::max<int64_t>(0, -start), end = std::min(length, count - start);
      double sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += static_cast<double>(taps.weights[i]) * samples[start + i];
      out[static_cast<size_t>(m * n + j)] = static_cast<float>(sum);
    }
  }
  return out;
}

std::vector<float> prepare_sound(const float* samples, int channels, int64_t count, int rate, int frames) {
  if (channels != 1 && channels != 2) {
    fail(Code::usage, "a reference sound has %d channels; 1 or 2 are allowed, so mix it down first", channels);
  }
  const int64_t stride = count;
  if (frames > 0) count = std::min(count, static_cast<int64_t>(static_cast<double>(frames) / 24.0 * rate));
  std::vector<float> out;
  for (int side = 0; side < 2; ++side) {
    const float* channel = samples + (channels == 2 ? side : 0) * stride;
    const std::vector<float> one = resample_audio(channel, count, rate);
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

}  // namespace h3
