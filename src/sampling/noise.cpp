#include "sampling/noise.h"

#include "base/error.h"
#include "sampling/rng.h"
#include "sampling/rows.h"

namespace h3 {
namespace {

int64_t elements(const NoiseSpec& spec, const LatentShape& shape) {
  return static_cast<int64_t>(spec.video_channels) * shape.frames * shape.height * shape.width;
}

template <typename Generator>
std::vector<float> draw_video(Generator& generator, const NoiseSpec& spec, const LatentShape& shape) {
  const std::vector<float> latent = generator.randn(elements(spec, shape));
  return patchify(latent.data(), spec.video_channels, shape.frames, shape.height, shape.width);
}

// A draw of shape [C, 2, Ta] arranged as rows.
template <typename Generator>
std::vector<float> draw_audio_channels_first(Generator& generator, const NoiseSpec& spec) {
  const int64_t channels = spec.audio_channels, latents = spec.audio_latents;
  const std::vector<float> drawn = generator.randn(channels * 2 * latents);
  std::vector<float> rows(drawn.size());
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t row = 0; row < 2 * latents; ++row) rows[row * channels + c] = drawn[c * 2 * latents + row];
  }
  return rows;
}

// One stream: conditions, video, then sound directly in row order.
Noise draw_diffusers(const NoiseSpec& spec) {
  TorchGenerator generator(spec.seed);
  Noise noise;
  for (const LatentShape& shape : spec.conditions) noise.conditions.push_back(draw_video(generator, spec, shape));
  noise.video = draw_video(generator, spec, spec.video);
  noise.audio = generator.randn(int64_t{2} * spec.audio_latents * spec.audio_channels);
  return noise;
}

// Every condition restarts the seed and is drawn in patch order.
Noise draw_comfy(const NoiseSpec& spec) {
  Noise noise;
  for (const LatentShape& shape : spec.conditions) {
    noise.conditions.push_back(TorchGenerator(spec.seed).randn(elements(spec, shape)));
  }
  TorchGenerator generator(spec.seed);
  noise.video = draw_video(generator, spec, spec.video);
  noise.audio = draw_audio_channels_first(generator, spec);
  return noise;
}

Noise draw_cortiq(const NoiseSpec& spec) {
  Noise noise;
  for (size_t i = 0; i < spec.conditions.size(); ++i) {
    noise.conditions.push_back(SplitMixGenerator(0x5EEDu ^ i).randn(elements(spec, spec.conditions[i])));
  }
  SplitMixGenerator video(spec.seed), audio(spec.seed ^ 0x9E3779B97F4A7C15u);
  noise.video = draw_video(video, spec, spec.video);
  noise.audio = draw_audio_channels_first(audio, spec);
  return noise;
}

// One draw over video and sound; every condition is the first draw of a generator of its own.
Noise draw_sdcpp(const NoiseSpec& spec) {
  Noise noise;
  for (const LatentShape& shape : spec.conditions) {
    PhiloxGenerator generator(spec.seed);
    noise.conditions.push_back(draw_video(generator, spec, shape));
  }
  const int64_t video = elements(spec, spec.video), latents = spec.audio_latents, channels = spec.audio_channels;
  const std::vector<float> drawn = PhiloxGenerator(spec.seed).randn(video + channels * 2 * latents);
  noise.video = patchify(drawn.data(), spec.video_channels, spec.video.frames, spec.video.height, spec.video.width);
  noise.audio.resize(static_cast<size_t>(channels * 2 * latents));
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t row = 0; row < 2 * latents; ++row)
      noise.audio[row * channels + c] = drawn[video + c * 2 * latents + row];
  }
  return noise;
}

// 1 - f32(0.999) is the reference's second factor; ComfyUI rounds 0.001 itself (spec dit 3.6).
constexpr float kKeep = 0.999f, kRest = 1.0f - 0.999f;

constexpr NoiseProfile kProfiles[] = {
    {"diffusers", draw_diffusers, kKeep, kRest, "one torch stream: conditions, video, sound"},
    {"comfy", draw_comfy, kKeep, 0.001f, "torch streams; every condition restarts the seed"},
    {"cortiq", draw_cortiq, kKeep, kRest, "SplitMix64, a stream each for video and sound"},
    {"sdcpp", draw_sdcpp, kKeep, kRest, "Philox; every condition restarts the seed"},
};

}  // namespace

std::span<const NoiseProfile> noise_profiles() { return kProfiles; }

const NoiseProfile& noise_profile(const std::string& name) {
  std::string known;
  for (const NoiseProfile& profile : kProfiles) {
    if (name == profile.name) return profile;
    known += (known.empty() ? "" : ", ") + std::string(profile.name);
  }
  fail(Code::usage, "unknown profile '%s'; known: %s", name.c_str(), known.c_str());
}

void noise_condition(const NoiseProfile& profile, std::vector<float>& latent, const std::vector<float>& draw) {
  H3_ASSERT(latent.size() == draw.size());
  for (size_t i = 0; i < latent.size(); ++i) {
    const float kept = profile.condition_keep * latent[i], added = profile.condition_noise * draw[i];
    latent[i] = kept + added;
  }
}

}  // namespace h3
