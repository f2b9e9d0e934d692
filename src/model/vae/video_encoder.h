// The encoder half: a causal 3-D CNN over tiles of pictures and of 17-frame clips.
#pragma once

#include <memory>
#include <vector>

#include "base/control.h"
#include "model/vae/video_vae.h"
#include "model/vae/video_weights.h"
#include "ops/workspace.h"

namespace h3 {

class VideoEncoder {
 public:
  // The component and tensors must outlive the encoder: convolutions are packed at the first encode that needs them.
  VideoEncoder(Ops& ops, const Component& component, const VideoVaeConfig& config, const VideoVaeTensors& tensors,
               const VideoVaeOptions& options);
  std::vector<float> encode(const PixelSource& pixels, int frames, int height, int width, const Control& control);
  int64_t scratch_bytes(int frames, int height, int width) const;
  int64_t weight_bytes() const { return weight_bytes_; }

 private:
  struct Norm {
    Tensor weight, bias;  // [channels] f32
  };
  struct Resnet {
    Norm norm1, norm2;
    std::unique_ptr<Conv> conv1, conv2, shortcut;  // shortcut: null where channels do not change
  };
  struct Level {
    std::vector<Resnet> blocks;
    std::unique_ptr<Conv> down;  // null where nothing is halved
  };
  struct Net {
    std::unique_ptr<Conv> in, out, quant;
    Norm norm_out;
    std::vector<Level> levels;
  };
  // One frame alone sees two zero frames before it, so only the last temporal tap of every kernel counts: an own set of
  // 2-D convolutions is exact and a third of the work (spec vae 6).
  enum class Kind : uint8_t { picture, clip };
  struct Scratch {
    Workspace memory;
    View a, b, c;  // each holds the largest activation
  };

  const Net& net(Kind kind);
  std::unique_ptr<Conv> make_conv(const WeightBinder& binder, const char* label, const TensorInfo* weight,
                                  const TensorInfo* bias, int space, int time, Kind kind);
  Norm make_norm(const WeightBinder& binder, const TensorInfo* weight, const TensorInfo* bias);
  Resnet make_resnet(const WeightBinder& binder, const ResnetTensors& t, const ShortcutTensors& shortcut,
                     const std::string& label, Kind kind);
  WorkspacePlan plan_tile(int frames, int height, int width) const;
  void run_tile(const Net& net, Scratch& scratch, const View& pixels, int64_t extent[3], View& moments);
  void run_resnet(const Resnet& resnet, Scratch& scratch, const int64_t extent[3], const std::string& label);
  void observe(const std::string& stage, const View& value) const;

  Ops& ops_;
  const Component& component_;
  const VideoVaeTensors& tensors_;
  VideoVaeConfig config_;
  Compute compute_;
  VideoTiling tiling_;
  StageObserver observe_;
  std::unique_ptr<Net> nets_[2];
  int64_t weight_bytes_ = 0;
};

}  // namespace h3
