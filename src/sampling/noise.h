// Which generator draws what, in which order, per profile (spec dit 5.1). Results are rows of the packed sequence.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace h3 {

struct LatentShape {
  int frames = 0, height = 0, width = 0;  // latent extents
};

struct NoiseSpec {
  uint64_t seed = 0;
  int video_channels = 24, audio_channels = 32;
  std::vector<LatentShape> conditions;  // visual conditions in packed order
  LatentShape video;
  int audio_latents = 0;  // per stereo channel
};

struct Noise {
  std::vector<std::vector<float>> conditions;  // [rows, 4 video_channels] each
  std::vector<float> video;                    // [rows, 4 video_channels]
  std::vector<float> audio;                    // [2 Ta, audio_channels]
};

struct NoiseProfile {
  const char* name;
  Noise (*draw)(const NoiseSpec& spec);
  float condition_keep, condition_noise;  // a condition enters as keep * latent + noise * draw
  const char* help;
};

std::span<const NoiseProfile> noise_profiles();
const NoiseProfile& noise_profile(const std::string& name);  // Error(usage) naming the known ones

// Rows of one noised condition: round(keep * latent) + round(noise * draw), in place on `latent` (spec dit 3.6).
void noise_condition(const NoiseProfile& profile, std::vector<float>& latent, const std::vector<float>& draw);

}  // namespace h3
