// The video autoencoder (vae.md 3-7, 9): a tiled ViT decoder and a tiled causal CNN encoder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/control.h"
#include "ops/ops.h"
#include "store/model_files.h"

namespace h3 {

struct VideoVaeOptions {
  Compute compute = Compute::f32;   // f32, bf16 (CPU) or f16 (GPU) for the decoder's linears; the encoder's convolutions too
  bool decoder = true, encoder = true;
};

// A run of finished frames: planar [3, frames, height, width] f32 in 0..1 (denormalised and clamped), on the host.
struct FrameRun {
  int first = 0, frames = 0, height = 0, width = 0;
  const float* rgb = nullptr;
};

// One axis of the tile plan (vae.md 4.1), in pixels.
struct TileAxis {
  std::vector<int> starts, lengths, overlaps;
};
TileAxis tile_axis(int length, int tile = 256, int overlap = 64, int quantum = 16);

class VideoVae {
 public:
  virtual ~VideoVae() = default;
  virtual bool has_encoder() const = 0;
  virtual bool has_decoder() const = 0;
  virtual const std::vector<float>& latents_mean() const = 0;  // [24]
  virtual const std::vector<float>& latents_std() const = 0;
  // latent: [24, T, h, w] f32, normalised as the denoiser leaves it. Frames arrive in order, clip by clip, so memory does
  // not grow with length. raw_sink (optional) gets the same frames before denormalise and clamp, for parity.
  virtual void decode(const float* latent, int frames, int height, int width, const Control& control,
                      const std::function<void(const FrameRun&)>& sink) = 0;
  // The parity form: de-normalised latents in, the whole ImageNet-normalised unclamped output [3, F, 16h, 16w] out.
  virtual std::vector<float> decode_raw(const float* latent, int frames, int height, int width, const Control& control) = 0;
  // pixels: [3, F, H, W] ImageNet-normalised. Returns moments [48, T', H/16, W/16].
  virtual std::vector<float> encode_moments(const float* pixels, int frames, int height, int width, const Control& control) = 0;
};

std::unique_ptr<VideoVae> load_video_vae(Ops& ops, const Component& component, const VideoVaeOptions& options);

// vae.md 7: posterior sample with a fresh seed-42 generator, f16 rounding, normalisation (or the plain mean).
enum class Posterior : uint8_t { sample42, mean };
std::vector<float> condition_latent(const VideoVae& vae, const std::vector<float>& moments, int64_t positions, Posterior kind);

}  // namespace h3
