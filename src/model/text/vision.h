// The vision tower with its DeepStack mergers (spec conditioner 5).
#pragma once

#include <string>
#include <vector>

#include "model/text/conditioner.h"
#include "model/text/materials.h"
#include "model/text/pixels.h"
#include "model/text/weights.h"

namespace h3::text {

// What binding found; becomes a VisionTower once the whole component has been checked.
struct BoundVision {
  StemTensors stem;
  std::vector<BlockTensors> blocks;
  MergerTensors merger;
  std::vector<MergerTensors> deepstack;
};
BoundVision bind_vision(WeightBinder& binder, const Names& names, const VisionDims& dims);

class VisionTower {
 public:
  VisionTower(const Materials& materials, const VisionDims& dims, const BoundVision& bound);

  int64_t deepstack_levels() const { return static_cast<int64_t>(dims_.taps.size()); }
  // features [1 + levels, tokens of all inputs, out] T: level 0 is spliced into the embeddings, level k + 1 is added
  // behind language layer k.
  void forward(const std::vector<VisionInput>& inputs, const View& features, const Control& control,
               const TextProbe& probe) const;

 private:
  struct Block {
    Tensor norm1, norm1_bias, norm2, norm2_bias;  // [D] f32
    Matrix qkv, out, fc1, fc2;
  };
  struct Merger {
    Tensor norm, norm_bias;  // [D] (main, normed before the 2x2 cells are joined) or [4 D] f32
    Matrix fc1, fc2;
  };
  struct Frame;  // views of one input inside the workspace

  Merger make_merger(const Materials& materials, const std::string& label, const MergerTensors& tensors) const;
  void embed(const VisionInput& input, const Frame& frame) const;
  void run_block(const Block& block, const Frame& frame) const;
  void merge(const Merger& merger, const Frame& frame, const View& out) const;
  std::vector<float> positions(int64_t grid_h, int64_t grid_w) const;

  Ops& ops_;
  VisionDims dims_;
  DType type_;
  Matrix patch_;
  std::vector<float> position_table_;  // [side * side, D], on the host: read once per picture
  std::vector<Block> blocks_;
  Merger merger_;
  std::vector<Merger> deepstack_;
};

}  // namespace h3::text
