#include "model/vae/video_vae.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "codec/scalar.h"
#include "model/vae/video_decoder.h"
#include "model/vae/video_encoder.h"
#include "ops/values.h"
#include "sampling/rng.h"

namespace h3 {
namespace {

constexpr int64_t kStagingBytes = 32 << 20;  // of finished frames on the host
constexpr int kMaxEdge = 65536;              // pixels; keeps every extent far from overflow

class LoadedVideoVae final : public VideoVae {
 public:
  using VideoVae::encode_moments;

  LoadedVideoVae(Ops& ops, const Component& component, const VideoVaeOptions& options)
      : ops_(ops), component_(component), config_(video_vae_config(component_)) {
    check_tiling(options.tiling);
    tensors_ = bind_video_vae(component_, config_);
    if (config_.has_decoder && options.decoder) {
      const WeightBinder binder(component_);
      decoder_ = std::make_unique<VideoDecoder>(ops_, binder, config_, tensors_, options);
      std_ = upload_f32(ops_.device(), kPixelStd, {3}, DType::f32, "pixel statistics");
      mean_ = upload_f32(ops_.device(), kPixelMean, {3}, DType::f32, "pixel statistics");
    }
    if (config_.has_encoder && options.encoder) {
      encoder_ = std::make_unique<VideoEncoder>(ops_, component_, config_, tensors_, options);
    }
  }

  bool has_encoder() const override { return encoder_ != nullptr; }
  bool has_decoder() const override { return decoder_ != nullptr; }
  const std::vector<float>& latents_mean() const override { return config_.mean; }
  const std::vector<float>& latents_std() const override { return config_.std; }
  int spatial_ratio() const override { return config_.ratio; }
  const ClipGeometry& clip() const override { return config_.clip; }
  int64_t weight_bytes() const override {
    return (decoder_ ? decoder_->weight_bytes() : 0) + (encoder_ ? encoder_->weight_bytes() : 0);
  }
  int64_t decode_bytes(int frames, int height, int width) const override {
    check_latent(frames, height, width);
    return decoder_->scratch_bytes(frames, height, width);
  }
  int64_t encode_bytes(int frames, int height, int width) const override {
    check_pixels(frames, height, width);
    return encoder_->scratch_bytes(frames, height, width);
  }

  void decode(const float* latent, int frames, int height, int width, const Control& control,
              const std::function<void(const FrameRun&)>& sink) override {
    check_latent(frames, height, width);
    const bool values = holds_values(ops_.device());
    if (values) check_finite(latent, config_.latent * frames * height * width);
    const int64_t area = static_cast<int64_t>(height) * width * config_.ratio * config_.ratio;
    const int64_t channels = config_.pixels;
    const int64_t at_once = std::clamp<int64_t>(kStagingBytes / (channels * area * 4), 1, config_.clip.clip);
    const std::shared_ptr<std::byte> memory = ops_.device().staging(channels * at_once * area * 4);
    auto* staging = reinterpret_cast<float*>(memory.get());
    FrameRun run{.height = height * config_.ratio, .width = width * config_.ratio, .rgb = staging};
    decoder_->decode(latent, frames, height, width, true, control, [&](int first, const View& pixels) {
      ops_.to_unit_range(pixels, std_, mean_, pixels);
      ops_.sync();
      for (int64_t done = 0; done < pixels.dim[1]; done += run.frames) {
        run.first = first + static_cast<int>(done);
        run.frames = static_cast<int>(std::min(at_once, pixels.dim[1] - done));
        for (int64_t c = 0; c < channels && values; ++c) {
          ops_.device().download(pixels.select(0, c).slice(0, done, run.frames), staging + c * run.frames * area);
        }
        sink(run);
        control.check();
      }
    });
  }

  std::vector<float> decode_raw(const float* latent, int frames, int height, int width,
                                const Control& control) override {
    check_latent(frames, height, width);
    const int64_t area = static_cast<int64_t>(height) * width * config_.ratio * config_.ratio;
    const int64_t total = clip_schedule(frames, config_.clip).frames;
    std::vector<float> out(static_cast<size_t>(config_.pixels * total * area));
    decoder_->decode(latent, frames, height, width, false, control, [&](int first, const View& pixels) {
      ops_.sync();
      for (int64_t c = 0; c < config_.pixels; ++c) {
        ops_.device().download(pixels.select(0, c), out.data() + (c * total + first) * area);
      }
    });
    return out;
  }

  std::vector<float> encode_moments(const PixelSource& pixels, int frames, int height, int width,
                                    const Control& control) override {
    check_pixels(frames, height, width);
    return encoder_->encode(pixels, frames, height, width, control);
  }

 private:
  void check_tiling(const VideoTiling& t) const {
    const int ratio = config_.ratio;
    if (t.tile % ratio == 0 && t.overlap % ratio == 0 && t.overlap > 0 && t.overlap < t.tile && t.tile <= kMaxEdge)
      return;
    fail(Code::usage,
         "video tiles of %d pixels with overlap %d: both must be multiples of %d, the overlap the smaller; "
         "the released ones are 256 and 64",
         t.tile, t.overlap, ratio);
  }
  void check_latent(int frames, int height, int width) const {
    if (decoder_ == nullptr) {
      fail(Code::usage, "%s has no video decoder loaded; name a file with decoder.* tensors",
           component_.origin.c_str());
    }
    const int edge = kMaxEdge / config_.ratio;
    if (frames >= 1 && frames <= kMaxEdge && height >= 1 && height <= edge && width >= 1 && width <= edge) return;
    fail(Code::usage, "a video latent of %d frames, %d x %d: frames must be 1..%d, edges 1..%d", frames, height, width,
         kMaxEdge, edge);
  }
  void check_pixels(int frames, int height, int width) const {
    if (encoder_ == nullptr) {
      fail(Code::usage, "%s has no video encoder loaded; name a file with encoder.* tensors",
           component_.origin.c_str());
    }
    // Below two positions per axis the deepest levels have nothing to reflect.
    const auto good = [&](int edge) {
      return edge % config_.ratio == 0 && edge >= 2 * config_.ratio && edge <= kMaxEdge;
    };
    if (frames >= 1 && frames <= kMaxEdge && good(height) && good(width)) return;
    fail(Code::usage, "cannot encode %d frames of %dx%d: edges must be multiples of %d and at least %d", frames, width,
         height, config_.ratio, 2 * config_.ratio);
  }
  static void check_finite(const float* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (!std::isfinite(values[i])) {
        fail(Code::numeric,
             "video latent: element %lld of %lld is not finite; the denoiser overflowed, try --precision f32",
             static_cast<long long>(i), static_cast<long long>(count));
      }
    }
  }

  Ops& ops_;
  Component component_;
  VideoVaeConfig config_;
  VideoVaeTensors tensors_;
  std::unique_ptr<VideoDecoder> decoder_;
  std::unique_ptr<VideoEncoder> encoder_;
  Tensor std_, mean_;
};

}  // namespace

std::unique_ptr<VideoVae> load_video_vae(Ops& ops, const Component& component, const VideoVaeOptions& options) {
  return std::make_unique<LoadedVideoVae>(ops, component, options);
}

void normalise_pixels(const uint8_t* rgb, int width, int height, float* planar, int frames, int index) {
  const int64_t pixels = static_cast<int64_t>(width) * height;
  for (int64_t c = 0; c < 3; ++c) {
    float value[256];
    for (int i = 0; i < 256; ++i) value[i] = (static_cast<float>(i) / 255.0f - kPixelMean[c]) / kPixelStd[c];
    float* const plane = planar + (c * frames + index) * pixels;
    for (int64_t i = 0; i < pixels; ++i) plane[i] = value[rgb[3 * i + c]];
  }
}

std::vector<float> VideoVae::encode_moments(const float* pixels, int frames, int height, int width,
                                            const Control& control) {
  const int64_t area = static_cast<int64_t>(height) * width;
  const PixelSource source = [&](int first, int count, float* planar) {
    for (int64_t c = 0; c < 3; ++c) {
      std::copy_n(pixels + (c * frames + first) * area, count * area, planar + c * count * area);
    }
  };
  return encode_moments(source, frames, height, width, control);
}

std::vector<float> sample_posterior(const std::vector<float>& moments, int64_t channels, int64_t positions) {
  H3_ASSERT(static_cast<int64_t>(moments.size()) == 2 * channels * positions);
  const int64_t count = channels * positions;
  TorchGenerator generator(42);
  std::vector<float> z = generator.randn(count);
  for (int64_t i = 0; i < count; ++i) {
    const float log_variance = std::clamp(moments[count + i], -30.0f, 20.0f);
    const float noise = std::exp(0.5f * log_variance) * z[i];
    z[i] = moments[i] + noise;
  }
  return z;
}

std::vector<float> condition_latent(const VideoVae& vae, const std::vector<float>& moments, int64_t positions,
                                    Posterior kind) {
  const int64_t channels = static_cast<int64_t>(vae.latents_mean().size());
  std::vector<float> latent;
  if (kind == Posterior::sample42) {
    latent = sample_posterior(moments, channels, positions);
    for (float& value : latent) value = f16_to_f32(f32_to_f16(value));
  } else {
    latent.assign(moments.begin(), moments.begin() + channels * positions);
  }
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t i = 0; i < positions; ++i) {
      float& value = latent[c * positions + i];
      value = (value - vae.latents_mean()[c]) / vae.latents_std()[c];
    }
  }
  return latent;
}

}  // namespace h3
