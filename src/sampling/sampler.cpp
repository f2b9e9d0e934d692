#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
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

// ComfyUI's state: the sound rides on the video's clock as y = (sigma_v / sigma_a) x_a, an ordinary flow latent whose
// target is r x0 with r = the ratio of the shifts (spec dit 6.3). The model reads x_a = y sigma_a / sigma_v, so that it
// sees the sound at its own level. Subclasses move the state with the estimates D of r x0 and x0.
class CarriedSampler : public Sampler {
 public:
  CarriedSampler(Ops& ops, const Schedule& schedule, const Streams& state)
      : ops_(ops),
        state_(state),
        sound_(ops.device(), DType::f32, {state.audio.dim[0], state.audio.dim[1]}, "carried sound"),
        uncarry_(ops.device(), uncarry(schedule)),
        video_(ops.device(), video_estimate(schedule)),
        audio_(ops.device(), audio_estimate(schedule)),
        steps_(schedule.evaluations()) {}

  Streams input(int step) override {
    ops_.lincomb(uncarry_.at(step), state_.audio, state_.audio, sound_);
    return {state_.video, sound_};
  }
  void advance(int step, const Streams& velocity) override {
    ops_.lincomb(video_.at(step), state_.video, velocity.video, velocity.video);
    ops_.lincomb(audio_.at(step), state_.audio, velocity.audio, velocity.audio);
    move(step, state_, velocity);
  }
  Streams result() override { return input(steps_); }

 protected:
  // state and estimate: the same views in every step.
  virtual void move(int step, const Streams& state, const Streams& estimate) = 0;
  Ops& ops_;

 private:
  static double ratio(const Schedule& schedule) { return schedule.video_shift / schedule.audio_shift; }
  // sigma_a / sigma_v at the levels the model reads; 1 / r at the end.
  static double carried(const Schedule& schedule, size_t step) {
    const double video = 1.0 - static_cast<double>(schedule.video.time[step]);
    return (1.0 - static_cast<double>(schedule.audio.time[step])) / video;
  }
  static std::vector<float> uncarry(const Schedule& schedule) {
    std::vector<float> pairs;
    for (size_t i = 0; i < schedule.video.time.size(); ++i) {
      pairs.insert(pairs.end(), {static_cast<float>(carried(schedule, i)), 0.0f});
    }
    pairs.insert(pairs.end(), {static_cast<float>(1 / ratio(schedule)), 0.0f});
    return pairs;
  }
  static std::vector<float> video_estimate(const Schedule& schedule) {
    std::vector<float> pairs;
    for (size_t i = 0; i < schedule.video.time.size(); ++i) {
      pairs.insert(pairs.end(), {1.0f, static_cast<float>(schedule.video.sigma[i])});
    }
    return pairs;
  }
  // D = y - sigma f with f = (1 - r) x_a - (1 + (r - 1) sigma_a) v.
  static std::vector<float> audio_estimate(const Schedule& schedule) {
    const double r = ratio(schedule);
    std::vector<float> pairs;
    for (size_t i = 0; i < schedule.video.time.size(); ++i) {
      const double sigma = schedule.video.sigma[i], level = 1.0 - static_cast<double>(schedule.audio.time[i]);
      pairs.push_back(static_cast<float>(1 - sigma * (1 - r) * carried(schedule, i)));
      pairs.push_back(static_cast<float>(sigma * (1 + (r - 1) * level)));
    }
    return pairs;
  }

  Streams state_;
  Tensor sound_;
  Coefficients uncarry_, video_, audio_;
  int steps_;
};

// x = rho x + (1 - rho) D, rho = sigma_{i+1} / sigma_i: Euler's step.
std::vector<float> blend_pairs(const std::vector<double>& sigma) {
  std::vector<float> pairs;
  for (size_t i = 0; i + 1 < sigma.size(); ++i) {
    const double rho = sigma[i + 1] / sigma[i];
    pairs.insert(pairs.end(), {static_cast<float>(rho), static_cast<float>(1 - rho)});
  }
  return pairs;
}

class CarriedEuler final : public CarriedSampler {
 public:
  CarriedEuler(Ops& ops, const Schedule& schedule, const Streams& state)
      : CarriedSampler(ops, schedule, state), blend_(ops.device(), blend_pairs(schedule.video.sigma)) {}

 private:
  void move(int step, const Streams& state, const Streams& estimate) override {
    ops_.lincomb(blend_.at(step), state.video, estimate.video, state.video);
    ops_.lincomb(blend_.at(step), state.audio, estimate.audio, state.audio);
  }
  Coefficients blend_;
};

class ResMultistep final : public CarriedSampler {
 public:
  ResMultistep(Ops& ops, const Schedule& schedule, const Streams& state)
      : CarriedSampler(ops, schedule, state),
        blend_(ops.device(), blend_pairs(schedule.video.sigma)),
        mix_(ops.device(), mix_pairs(schedule.video.sigma)),
        decay_(ops.device(), decay_pairs(schedule.video.sigma)),
        old_video_(ops.device(), DType::f32, {state.video.dim[0], state.video.dim[1]}, "previous estimate"),
        old_audio_(ops.device(), DType::f32, {state.audio.dim[0], state.audio.dim[1]}, "previous estimate"),
        steps_(schedule.evaluations()) {}

 private:
  void move(int step, const Streams& state, const Streams& estimate) override {
    move_stream(step, state.video, estimate.video, old_video_);
    move_stream(step, state.audio, estimate.audio, old_audio_);
  }
  // The first and the last step are Euler's.
  void move_stream(int step, const View& x, const View& estimate, const View& old) {
    if (step == 0 || step + 1 == steps_) {
      ops_.lincomb(blend_.at(step), x, estimate, x);
    } else {
      ops_.lincomb(mix_.at(step), estimate, old, old);
      ops_.lincomb(decay_.at(step), x, old, x);
    }
    ops_.copy(estimate, old);
  }
  template <typename Make>
  static std::vector<float> inner_pairs(const std::vector<double>& sigma, const Make& make) {
    std::vector<float> pairs(2, 0.0f);
    for (int i = 1; i + 2 < static_cast<int>(sigma.size()); ++i) make(multistep_row(sigma, i), pairs);
    pairs.insert(pairs.end(), 2, 0.0f);
    return pairs;
  }
  static std::vector<float> mix_pairs(const std::vector<double>& sigma) {
    return inner_pairs(sigma, [](const MultistepRow& row, std::vector<float>& pairs) {
      pairs.insert(pairs.end(), {static_cast<float>(row.h * row.b1), static_cast<float>(row.h * row.b2)});
    });
  }
  static std::vector<float> decay_pairs(const std::vector<double>& sigma) {
    return inner_pairs(sigma, [](const MultistepRow& row, std::vector<float>& pairs) {
      pairs.insert(pairs.end(), {static_cast<float>(row.decay), 1.0f});
    });
  }

  Coefficients blend_, mix_, decay_;
  Tensor old_video_, old_audio_;
  int steps_;
};

template <typename Kind>
std::unique_ptr<Sampler> make_carried(Ops& ops, const Schedule& schedule, const Streams& state) {
  return std::make_unique<Kind>(ops, schedule, state);
}

constexpr SamplerRow kSamplers[] = {
    {"euler", make_euler, "the reference step, video and sound on their own clocks"},
    {"training-euler", make_training_euler, "the step turbo adapters were trained with"},
    {"two-clock", make_two_clock, "cortiq's step: levels in double, the sound remapped from the video's clock"},
    {"carried-euler", make_carried<CarriedEuler>, "ComfyUI's Euler: the sound carried on the video's clock"},
    {"res_multistep", make_carried<ResMultistep>, "ComfyUI's res_multistep: second order, the sound carried"},
    {"stock", make_stock, "one clock for both streams; wrong at few steps, for comparison"},
};

}  // namespace

MultistepRow multistep_row(const std::vector<double>& sigma, int step) {
  const size_t i = static_cast<size_t>(step);
  H3_ASSERT(step >= 1 && i + 1 < sigma.size() && sigma[i + 1] > 0);
  const auto lambda = [&](size_t at) { return -std::log(sigma[at]); };
  MultistepRow row;
  row.h = lambda(i + 1) - lambda(i);
  row.c2 = (lambda(i - 1) - lambda(i)) / row.h;
  row.decay = std::exp(-row.h);
  const double phi1 = std::expm1(-row.h) / -row.h, phi2 = (phi1 - 1) / -row.h;
  row.b2 = phi2 / row.c2;
  row.b1 = phi1 - row.b2;
  if (!std::isfinite(row.b1) || !std::isfinite(row.b2)) row.b1 = row.b2 = 0;  // equal levels: nothing moves
  return row;
}

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
