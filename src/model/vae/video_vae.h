// The video autoencoder (spec vae 3-7, 9): a tiled ViT decoder and a tiled causal CNN encoder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/control.h"
#include "model/vae/observer.h"
#include "model/vae/video_plan.h"
#include "ops/ops.h"
#include "store/model_files.h"

namespace h3 {

struct VideoVaeOptions {
  // Of the decoder's block linears and proj_out. Operands and the branches between them have this type; the residual
  // stream, norms, rotation, proj_out's result and the blends stay f32 (spec vae 10). bf16 is the least exact choice.
  Compute compute = Compute::f32;
  // With Compute::packed: the decoder's block linears are rounded to e4m3 at load, and where a device multiplies e4m3
  // (Ops::multiplies_float8) their activations become e4m3 row by row. An approximation.
  bool float8 = false;
  Compute encoder_compute = Compute::f32;  // of the encoder's convolutions; activations stay f32
  bool decoder = true, encoder = true;     // load this half if the file has it
  VideoTiling tiling;
  // Tiles per forward at most; 0 = one on the host, sixteen on an accelerator. Never changes the result.
  int tile_batch = 0;
  // Sees intermediate results of every tile. Decoder: "post_quant_conv", "proj_in", "block0_in", "b0.norm1", "b0.attn",
  // "b0.ff", "block.i", "norm_out", "proj_out" (rows of all tiles of a batch). Encoder: "conv_in", "down.l",
  // "down.l.resnet.b", "down.l.resnet.b.norm1" (after its silu), ".conv1", ".shortcut", "norm_out" (after its silu),
  // "conv_out", "quant_conv".
  StageObserver observe;
};

// The options of one precision for both halves; packed: the decoder in e4m3, the encoder in f16.
inline void set_precision(VideoVaeOptions& options, Compute compute) {
  options.compute = compute;
  options.float8 = compute == Compute::packed;
  options.encoder_compute = options.float8 ? Compute::f16 : compute;
}

// A run of finished frames: planar [3, frames, height, width] f32 in 0..1 (denormalised and clamped), on the host.
// Valid during the call.
struct FrameRun {
  int first = 0, frames = 0, height = 0, width = 0;
  const float* rgb = nullptr;
};

// Pixels on their way to the encoder: (v / 255 - mean) / std in f32, in that order (spec vae 8.4).
inline constexpr float kPixelMean[3] = {0.485f, 0.456f, 0.406f};
inline constexpr float kPixelStd[3] = {0.229f, 0.224f, 0.225f};
// rgb [height, width, 3] into frame `index` of `planar` [3, frames, height, width].
void normalise_pixels(const uint8_t* rgb, int width, int height, float* planar, int frames, int index);

// Writes frames first .. first + count - 1, normalised, as [3, count, H, W].
using PixelSource = std::function<void(int first, int count, float* planar)>;

class VideoVae {
 public:
  virtual ~VideoVae() = default;
  virtual bool has_encoder() const = 0;
  virtual bool has_decoder() const = 0;
  virtual const std::vector<float>& latents_mean() const = 0;  // [24]
  virtual const std::vector<float>& latents_std() const = 0;
  virtual int spatial_ratio() const = 0;         // 16
  virtual const ClipGeometry& clip() const = 0;  // frame counts: clip_schedule(), encoded_frames()
  virtual int64_t weight_bytes() const = 0;      // on the device, of the halves built so far
  virtual int64_t decode_bytes(int frames, int height, int width) const = 0;  // of scratch; latent units
  virtual int64_t encode_bytes(int frames, int height, int width) const = 0;  // pixel units

  // latent: [24, T, h, w] f32, normalised as the denoiser leaves it. Frames arrive in order, in runs; memory does not
  // grow with T. Error(numeric) when a latent is not finite. Without values (ops/values.h) nothing is read or given.
  virtual void decode(const float* latent, int frames, int height, int width, const Control& control,
                      const std::function<void(const FrameRun&)>& sink) = 0;
  // The parity form: de-normalised latents in, the whole ImageNet-normalised unclamped output [3, F, 16h, 16w] out.
  virtual std::vector<float> decode_raw(const float* latent, int frames, int height, int width,
                                        const Control& control) = 0;
  // Returns moments [48, T', H/16, W/16]; T' = encoded_frames(F). Asks for one clip of pixels after the other, so
  // memory does not grow with F. Without values it asks for none, and the moments are empty.
  virtual std::vector<float> encode_moments(const PixelSource& pixels, int frames, int height, int width,
                                            const Control& control) = 0;
  // The same of pixels [3, F, H, W].
  std::vector<float> encode_moments(const float* pixels, int frames, int height, int width, const Control& control);
};

std::unique_ptr<VideoVae> load_video_vae(Ops& ops, const Component& component, const VideoVaeOptions& options);

// Spec vae 7: posterior sample with a fresh seed-42 generator, f16 rounding, normalisation (or the plain mean).
// moments [48, positions] -> [24, positions].
enum class Posterior : uint8_t { sample42, mean };
std::vector<float> condition_latent(const VideoVae& vae, const std::vector<float>& moments, int64_t positions,
                                    Posterior kind);
// The sample before it is rounded to f16 and normalised.
std::vector<float> sample_posterior(const std::vector<float>& moments, int64_t channels, int64_t positions);

}  // namespace h3
