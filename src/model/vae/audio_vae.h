// The audio autoencoder (spec vae 11-13): BigVGAN decoder, DAC-style encoder with an attention head; f32 throughout.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/control.h"
#include "model/vae/observer.h"
#include "ops/ops.h"
#include "store/model_files.h"

namespace h3 {

inline constexpr int kSampleRate = 32000;
inline constexpr int kSamplesPerLatent = 800;

struct AudioVaeOptions {
  bool decoder = true, encoder = true;  // load this half if the file has it
  // Decoder: "dec_in_proj", "conv_pre", "ups.i", "resblock.j", "resblock.j.activations.a", "resblock.j.convs1.q",
  // "stage_out.i" (mean of the residual blocks), "activation_post", "conv_post" (before the clamp): [channels, length].
  // Encoder: "block.s", "block.s.res.j": [channels, length]; "attn", "mlp", "pre_block": [latents, 32].
  StageObserver observe;
};

class AudioVae {
 public:
  virtual ~AudioVae() = default;
  virtual bool has_encoder() const = 0;
  virtual bool has_decoder() const = 0;
  virtual const std::vector<float>& latents_mean() const = 0;  // [32]
  virtual const std::vector<float>& latents_std() const = 0;
  virtual int64_t weight_bytes() const = 0;                 // on the device
  virtual int64_t decode_bytes(int latents) const = 0;      // of scratch
  virtual int64_t encode_bytes(int64_t samples) const = 0;  // of scratch, per channel

  // rows: [2 * latents, 32] f32, channel-major, normalised, as the denoiser leaves them. Returns [2, 800 * latents] in
  // -1..1. Error(numeric) when a latent is not finite.
  virtual std::vector<float> decode(const float* rows, int latents, const Control& control) = 0;
  // One channel, de-normalised latents [32, latents] -> [800 * latents].
  virtual std::vector<float> decode_channel(const float* latent, int latents, const Control& control) = 0;
  // One mono channel [samples] at 32 kHz -> mean [32, ceil(samples / 800)], not normalised. log_std (optional) gets the
  // other head; it stays empty when the file has none.
  virtual std::vector<float> encode_channel(const float* samples, int64_t count, const Control& control,
                                            std::vector<float>* log_std = nullptr) = 0;
  // A reference sound [2, count] at 32 kHz -> condition rows [2 * latents, 32], channel-major, normalised (spec vae
  // 12).
  virtual std::vector<float> encode(const float* samples, int64_t count, const Control& control) = 0;
};

std::unique_ptr<AudioVae> load_audio_vae(Ops& ops, const Component& component, const AudioVaeOptions& options = {});

// torchaudio's default windowed-sinc resampler (spec vae 13), one channel: ceil(count * to / from) samples.
std::vector<float> resample_audio(const float* samples, int64_t count, int from_rate, int to_rate = kSampleRate);

// A decoded soundtrack or sound file [channels, count] as the encoder takes it (spec vae 13): cut to `frames` at 24 per
// second (0 = not), one channel doubled, resampled to 32 kHz. Error(usage) unless it has one or two channels.
std::vector<float> prepare_sound(const float* samples, int channels, int64_t count, int rate, int frames);

}  // namespace h3
