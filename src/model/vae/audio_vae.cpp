#include "model/vae/audio_vae.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/vae/audio_decoder.h"
#include "model/vae/audio_encoder.h"
#include "model/vae/audio_weights.h"

namespace h3 {
namespace {

class LoadedAudioVae final : public AudioVae {
 public:
  LoadedAudioVae(Ops& ops, const Component& component, const AudioVaeOptions& options)
      : config_(audio_vae_config(component)) {
    const AudioVaeTensors tensors(component, config_);
    if (config_.has_decoder && options.decoder) {
      decoder_ = std::make_unique<AudioDecoder>(ops, config_, tensors, options.observe);
    }
    if (config_.has_encoder && options.encoder) {
      encoder_ = std::make_unique<AudioEncoder>(ops, config_, tensors, options.observe);
    }
  }

  bool has_encoder() const override { return encoder_ != nullptr; }
  bool has_decoder() const override { return decoder_ != nullptr; }
  const std::vector<float>& latents_mean() const override { return config_.mean; }
  const std::vector<float>& latents_std() const override { return config_.std; }
  int64_t weight_bytes() const override {
    return (decoder_ ? decoder_->weight_bytes() : 0) + (encoder_ ? encoder_->weight_bytes() : 0);
  }
  int64_t decode_bytes(int latents) const override { return decoder_->scratch_bytes(latents); }
  int64_t encode_bytes(int64_t samples) const override { return encoder_->scratch_bytes(samples); }

  std::vector<float> decode(const float* rows, int latents, const Control& control) override {
    H3_ASSERT(decoder_ != nullptr && latents > 0);
    const int64_t channels = config_.latent;
    for (int64_t i = 0; i < 2 * latents * channels; ++i) {
      if (!std::isfinite(rows[i])) {
        fail(Code::numeric, "audio latent row %lld is not finite; the sound cannot be decoded",
             static_cast<long long>(i / channels));
      }
    }
    std::vector<float> both(static_cast<size_t>(2 * channels * latents));
    Counter counter{control, "decode audio", 2 * decoder_->steps()};
    for (int side = 0; side < 2; ++side) {
      for (int64_t t = 0; t < latents; ++t) {
        const float* row = rows + (side * static_cast<int64_t>(latents) + t) * channels;
        // Two roundings, as the reference has them.
        for (int64_t c = 0; c < channels; ++c) {
          both[(side * channels + c) * latents + t] = row[c] * config_.std[c] + config_.mean[c];
        }
      }
    }
    return decoder_->decode(both.data(), latents, 2, [&] { counter.step(); });
  }

  std::vector<float> decode_channel(const float* latent, int latents, const Control& control) override {
    H3_ASSERT(decoder_ != nullptr && latents > 0);
    Counter counter{control, "decode audio", decoder_->steps()};
    return decoder_->decode(latent, latents, 1, [&] { counter.step(); });
  }

  std::vector<float> encode_channel(const float* samples, int64_t count, const Control& control,
                                    std::vector<float>* log_std) override {
    Counter counter{control, "encode audio", encoder_->steps()};
    return encode_one(samples, count, counter, log_std);
  }

  std::vector<float> encode(const float* samples, int64_t count, const Control& control) override {
    Counter counter{control, "encode audio", 2 * encoder_->steps()};
    const int64_t channels = config_.latent;
    std::vector<float> rows;
    for (int side = 0; side < 2; ++side) {
      const std::vector<float> mean = encode_one(samples + side * count, count, counter, nullptr);
      const int64_t latents = static_cast<int64_t>(mean.size()) / channels;
      for (int64_t t = 0; t < latents; ++t) {
        for (int64_t c = 0; c < channels; ++c) {
          rows.push_back((mean[c * latents + t] - config_.mean[c]) / config_.std[c]);
        }
      }
    }
    return rows;
  }

 private:
  struct Counter {
    const Control& control;
    const char* stage;
    int64_t total, done = 0;
    void step() { control.progress(stage, ++done, total); }
  };

  std::vector<float> encode_one(const float* samples, int64_t count, Counter& counter, std::vector<float>* log_std) {
    H3_ASSERT(encoder_ != nullptr && count > 0);
    if (!std::all_of(samples, samples + count, [](float v) { return std::isfinite(v); })) {
      fail(Code::numeric, "the sound has samples that are not finite; it cannot be encoded");
    }
    return encoder_->encode(
        samples, count, [&] { counter.step(); }, log_std);
  }

  AudioVaeConfig config_;
  std::unique_ptr<AudioDecoder> decoder_;
  std::unique_ptr<AudioEncoder> encoder_;
};

}  // namespace

std::unique_ptr<AudioVae> load_audio_vae(Ops& ops, const Component& component, const AudioVaeOptions& options) {
  return std::make_unique<LoadedAudioVae>(ops, component, options);
}

}  // namespace h3
