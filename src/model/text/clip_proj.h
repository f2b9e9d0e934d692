// ClipProj: a small encoder's hidden state mapped to the rows of the large one (spec conditioner 8, formats G).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/text/materials.h"
#include "ops/ops.h"
#include "store/weight_table.h"

namespace h3::text {

struct ClipProjTensors {
  const TensorInfo *matrix, *mean_in, *std_in, *mean_out, *std_out, *sink_out;
};
enum class ClipProjDim : uint8_t { none, in, out };
inline constexpr WeightRow<ClipProjTensors, ClipProjDim> kClipProj[] = {
    {&ClipProjTensors::matrix, "W", {ClipProjDim::in, ClipProjDim::out}, kKeepF32 | kMayBeAbsent},
    {&ClipProjTensors::mean_in, "mean_in", {ClipProjDim::in}, kKeepF32},
    {&ClipProjTensors::std_in, "std_in", {ClipProjDim::in}, kKeepF32},
    {&ClipProjTensors::mean_out, "mean_out", {ClipProjDim::out}, kKeepF32},
    {&ClipProjTensors::std_out, "std_out", {ClipProjDim::out}, kKeepF32},
    {&ClipProjTensors::sink_out, "sink_out", {ClipProjDim::out}, kKeepF32 | kMayBeAbsent},
};
static_assert(std::size(kClipProj) * sizeof(const TensorInfo*) == sizeof(ClipProjTensors), "a field has no row");

// One layer of the residual: mlp.{0,2,...}.weight [out, in] and .bias, which may be absent.
struct ClipProjLayer {
  const TensorInfo *weight = nullptr, *bias = nullptr;
};

struct BoundClipProj {
  int64_t in = 0, out = 0;
  ClipProjTensors tensors{};
  std::vector<ClipProjLayer> mlp;
};

// Error(data) for missing statistics, unknown names, widths that do not chain, or neither W nor mlp.
BoundClipProj bind_clip_proj(const Component& component);

// Error(data) unless a map from `in` values fits an encoder whose hidden states have `hidden`.
void check_clip_proj_width(const Component& component, int64_t in, int64_t hidden);

// The layer that the file was fitted on, from its metadata; 0 when it does not say (a CMF keeps the layers up to it).
int clip_proj_tap(const Component& component);

// cond = ((h - mean_in) / std_in . W + mlp((h - mean_in) / std_in)) * std_out + mean_out, all in f32; row 0 of the
// sequence is sink_out where the file has one. GELU (erf) between the layers of the mlp.
class ClipProj {
 public:
  ClipProj(Ops& ops, const Component& component);
  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  std::vector<float> project(const std::vector<float>& hidden) const;  // [rows, in] -> [rows, out]

 private:
  Ops& ops_;
  int64_t in_ = 0, out_ = 0;
  std::vector<float> mean_in_, std_in_, mean_out_, std_out_, sink_out_;
  Matrix matrix_;  // W transposed; null without one
  std::vector<Matrix> mlp_;
};

}  // namespace h3::text
