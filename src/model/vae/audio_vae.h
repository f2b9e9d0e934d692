// The audio autoencoder (vae.md 11-13): BigVGAN decoder, DAC-style encoder; f32 throughout.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/control.h"
#include "ops/ops.h"
#include "store/model_files.h"

namespace h3 {

inline constexpr int kSampleRate = 32000;
inline constexpr int kSamplesPerLatent = 800;

class AudioVae {
 public:
  virtual ~AudioVae() = default;
  virtual bool has_encoder() const = 0;
  virtual const std::vector<float>& latents_mean() const = 0;  // [32]
  virtual const std::vector<float>& latents_std() const = 0;
  // rows: [2 * latents, 32] f32, channel-major, normalised, as the denoiser leaves them.
  // Returns [2, 800 * latents] in -1..1.
  virtual std::vector<float> decode(const float* rows, int latents, const Control& control) = 0;
  // One channel, de-normalised latents [32, latents] -> [800 * latents].
  virtual std::vector<float> decode_channel(const float* latent, int latents, const Control& control) = 0;
  // One mono channel [samples] at 32 kHz -> mean [32, ceil(samples / 800)]. log_std (optional) gets the other head.
  virtual std::vector<float> encode_channel(const float* samples, int64_t count, const Control& control,
                                            std::vector<float>* log_std = nullptr) = 0;
};

std::unique_ptr<AudioVae> load_audio_vae(Ops& ops, const Component& component);

// torchaudio's default windowed-sinc resampler (vae.md 13), one channel.
std::vector<float> resample_audio(const float* samples, int64_t count, int from_rate, int to_rate = kSampleRate);

}  // namespace h3
