// The decoder half: tile-clips in batches through a ViT, raw tiles in a ring on the device, blended as they come.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/control.h"
#include "model/vae/video_vae.h"
#include "model/vae/video_weights.h"
#include "ops/workspace.h"

namespace h3 {

class VideoDecoder {
 public:
  // frames [3, n, H, W] f32 on the device, a window of the scratch (columns and rows contiguous): output frames first
  // ... first + n - 1, ImageNet-normalised. The view may be overwritten.
  using Emit = std::function<void(int first, const View& frames)>;

  VideoDecoder(Ops& ops, const WeightBinder& binder, const VideoVaeConfig& config, const VideoVaeTensors& tensors,
               const VideoVaeOptions& options);
  // denormalise: latent is x * std + mean on the way in.
  void decode(const float* latent, int frames, int height, int width, bool denormalise, const Control& control,
              const Emit& emit);
  int64_t scratch_bytes(int frames, int height, int width) const;
  int64_t weight_bytes() const { return weight_bytes_; }

 private:
  struct Block {
    Tensor norm1, norm2, scale1, scale2;       // [hidden] f32
    std::unique_ptr<Linear> qkv, out, w1, w2;  // rows [q; k; v] of all heads; w1 rows [gate; up]
  };
  // Everything that follows from the extents of one request.
  struct Plan {
    ClipSchedule schedule;
    TileAxis ys, xs;  // pixels
    int64_t latent_h = 0, latent_w = 0;
    int64_t t = 0, h = 0, w = 0;   // tile in latent units
    int64_t tokens = 0, rows = 0;  // of one tile: without and with the suffix
    int batch = 1, ring = 1;       // tiles per forward; raw tiles kept
    WorkspacePlan memory;
    int tiles() const { return ys.count() * xs.count(); }
  };
  struct Run;

  Plan make_plan(int frames, int height, int width) const;
  std::unique_ptr<Linear> make_linear(const char* name, MatrixSource weight, std::vector<float> bias,
                                      Compute compute) const;
  Block make_block(const WeightBinder& binder, const DecoderBlockTensors& tensors, int64_t index) const;
  void upload_window(Run& run, int clip) const;
  void decode_clip(Run& run, int clip);
  void forward(Run& run, int first, int count);
  void run_block(Run& run, const Block& block, int64_t rows, size_t index);
  void attention_branch(Run& run, const Block& block, int64_t rows, size_t index);
  void add_branch(const Linear& weight, const View& in, const View& y, const Tensor& scale, const View& x,
                  const char* stage);
  void blend(Run& run, int tile);
  void observe(const std::string& stage, const View& value) const;

  Ops& ops_;
  VideoVaeConfig config_;
  DType type_ = DType::f32;  // of branch activations
  Compute compute_;
  bool float8_;
  VideoTiling tiling_;
  int tile_batch_;
  StageObserver observe_;
  std::unique_ptr<Linear> post_quant_, proj_in_, proj_out_;
  Tensor norm_out_, norm_out_bias_;
  Tensor suffix_;  // [registers + 1, hidden] f32: the register tokens and the zero token
  Tensor fade_;    // [frame overlap, 2] f32: weights of the previous and of the current clip
  std::vector<Block> blocks_;
  int64_t weight_bytes_ = 0;
};

}  // namespace h3
