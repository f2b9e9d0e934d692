#include "sampling/sampler.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace h3 {
namespace {

// Pairs (a, b) of out = a x + b y, one row per evaluation, on the device.
class Coefficients {
 public:
  Coefficients(Device& device, const std::vector<float>& pairs)
      : table_(upload_f32(device, pairs.data(), {static_cast<int64_t>(pairs.size() / 2), 2}, DType::f32,
                          "sampler coefficients")) {}
  View at(int step) const { return table_.view.select(0, step); }

 private:
  Tensor table_;
};

// The reference step (spec dit 6.1): x0 = x + (1 - t) v, x = rho x + (1 - rho) x0. The level of x0 goes through the
// model's time, the ratio comes from the grid; each operation rounds.
class BlendStream {
 public:
  BlendStream(Device& device, const Grid& grid) : clean_(device, clean(grid)), blend_(device, blend(grid)) {}

  void advance(Ops& ops, int step, const View& x, const View& velocity) const {
    ops.lincomb(clean_.at(step), x, velocity, velocity);
    ops.lincomb(blend_.at(step), x, velocity, x);
  }

 private:
  static std::vector<float> clean(const Grid& grid) {
    std::vector<float> pairs;
    for (float time : grid.time) pairs.insert(pairs.end(), {1.0f, 1.0f - time});
    return pairs;
  }
  static std::vector<float> blend(const Grid& grid) {
    std::vector<float> pairs;
    for (size_t i = 0; i < grid.time.size(); ++i) {
      const float ratio = static_cast<float>(grid.sigma[i + 1]) / static_cast<float>(grid.sigma[i]);
      pairs.insert(pairs.end(), {ratio, 1.0f - ratio});
    }
    return pairs;
  }

  Coefficients clean_, blend_;
};

// x = x + (sigma_i - sigma_{i+1}) v.
class EulerStream {
 public:
  EulerStream(Device& device, const std::vector<float>& steps) : coefficients_(device, pairs(steps)) {}

  void advance(Ops& ops, int step, const View& x, const View& velocity) const {
    ops.lincomb(coefficients_.at(step), x, velocity, x);
  }

 private:
  static std::vector<float> pairs(const std::vector<float>& steps) {
    std::vector<float> out;
    for (float step : steps) out.insert(out.end(), {1.0f, step});
    return out;
  }

  Coefficients coefficients_;
};

// Both streams advance on their own; the model reads the state itself.
template <typename Stream>
class IndependentSampler final : public Sampler {
 public:
  IndependentSampler(Ops& ops, const Streams& state, Stream video, Stream audio)
      : ops_(ops), state_(state), video_(std::move(video)), audio_(std::move(audio)) {}

  Streams input(int) override { return state_; }
  void advance(int step, const Streams& velocity) override {
    video_.advance(ops_, step, state_.video, velocity.video);
    audio_.advance(ops_, step, state_.audio, velocity.audio);
  }
  Streams result() override { return state_; }

 private:
  Ops& ops_;
  Streams state_;
  Stream video_, audio_;
};

std::unique_ptr<Sampler> make_euler(Ops& ops, const Schedule& schedule, const Streams& state) {
  Device& device = ops.device();
  return std::make_unique<IndependentSampler<BlendStream>>(ops, state, BlendStream(device, schedule.video),
                                                           BlendStream(device, schedule.audio));
}

std::unique_ptr<Sampler> euler_sampler(Ops& ops, const Streams& state, const std::vector<float>& video,
                                       const std::vector<float>& audio) {
  Device& device = ops.device();
  return std::make_unique<IndependentSampler<EulerStream>>(ops, state, EulerStream(device, video),
                                                           EulerStream(device, audio));
}

// Steps in f32 from f32 levels (spec dit 6.2).
std::unique_ptr<Sampler> make_training_euler(Ops& ops, const Schedule& schedule, const Streams& state) {
  const auto steps = [](const Grid& grid) {
    std::vector<float> out;
    for (size_t i = 0; i < grid.time.size(); ++i) {
      out.push_back(static_cast<float>(grid.sigma[i]) - static_cast<float>(grid.sigma[i + 1]));
    }
    return out;
  };
  return euler_sampler(ops, state, steps(schedule.video), steps(schedule.audio));
}

// Steps rounded once from doubles; the sound is remapped from the video's clock (spec dit 6.4).
std::vector<float> two_clock_steps(const Schedule& schedule, bool audio) {
  constexpr double kLeast = 1e-6;  // the level at which the model is evaluated never falls below
  std::vector<float> out;
  const std::vector<double>& sigma = schedule.video.sigma;
  for (size_t i = 0; i + 1 < sigma.size(); ++i) {
    double now = sigma[i], next = sigma[i + 1];
    if (audio) {
      now = remap_level(std::max(now, kLeast), schedule.video_shift, schedule.audio_shift);
      next = remap_level(next, schedule.video_shift, schedule.audio_shift);
    }
    out.push_back(static_cast<float>(now - next));
  }
  return out;
}

std::unique_ptr<Sampler> make_two_clock(Ops& ops, const Schedule& schedule, const Streams& state) {
  return euler_sampler(ops, state, two_clock_steps(schedule, false), two_clock_steps(schedule, true));
}

// What a sampler that knows one clock does to the sound: audibly wrong at few steps, kept for comparison.
std::unique_ptr<Sampler> make_stock(Ops& ops, const Schedule& schedule, const Streams& state) {
  const std::vector<float> steps = two_clock_steps(schedule, false);
  return euler_sampler(ops, state, steps, steps);
}

constexpr SamplerRow kSamplers[] = {
    {"euler", make_euler, "the reference step, video and sound on their own clocks"},
    {"training-euler", make_training_euler, "the step turbo adapters were trained with"},
    {"two-clock", make_two_clock, "cortiq's step: levels in double, the sound remapped from the video's clock"},
    {"stock", make_stock, "one clock for both streams; wrong at few steps, for comparison"},
};

}  // namespace

std::span<const SamplerRow> samplers() { return kSamplers; }

std::unique_ptr<Sampler> make_sampler(const std::string& name, Ops& ops, const Schedule& schedule,
                                      const Streams& state) {
  std::string known;
  for (const SamplerRow& row : kSamplers) {
    if (name == row.name) return row.make(ops, schedule, state);
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  fail(Code::usage, "unknown sampler '%s'; known: %s", name.c_str(), known.c_str());
}

}  // namespace h3
