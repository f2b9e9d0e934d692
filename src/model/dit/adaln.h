// AdaLN (spec dit 2.3, 2.4, 9): a block's modulation depends on the row's time and modality only, so every row that a
// run will read is computed once, before the loop, and a step picks rows by number.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/control.h"
#include "model/dit/layout.h"
#include "model/dit/weights.h"
#include "ops/ops.h"

namespace h3::dit {

// [times, width] f32: cosines, then sines, of t times 10000^(-k / (width / 2)); t is not scaled.
std::vector<float> time_sinusoid(const std::vector<float>& times, int64_t width);

// [times, rank] f32: the curve [points, rank] over t in [0, 1], interpolated as torch.lerp does (spec dit 9).
std::vector<float> curve_coordinates(const std::vector<float>& curve, int64_t rank, const std::vector<float>& times);

// [times, time_dim] f32: linear, silu, linear over the sinusoid, all in f32.
Tensor embed_times(Ops& ops, const Source& source, const std::vector<float>& times);

// Which times each modality reads over a run, and which row of the bank each packed row reads at each evaluation.
struct ModulationPlan {
  std::array<std::vector<float>, 3> times;  // by Tag, ascending
  std::vector<int32_t> ids;                 // [evaluations, S]: rows of tag 0, then 1, then 2, in order of time
  std::vector<float> final_times;           // of target rows, ascending
  std::vector<int32_t> final_ids;           // [evaluations, target rows]
  int64_t rows() const { return static_cast<int64_t>(times[0].size() + times[1].size() + times[2].size()); }
  bool same_rows(const ModulationPlan& other) const { return times == other.times && final_times == other.final_times; }
};
ModulationPlan plan_modulation(const PackedLayout& layout, const std::vector<float>& video_times,
                               const std::vector<float>& audio_times, bool with_ids = true);

struct ModulationBank {
  ModulationPlan plan;         // without the ids
  std::vector<Tensor> blocks;  // [rows, 6 hidden] T each: shift, scale, gate of attention, then of the MLP
  Tensor final_rows;           // [times, 2 hidden] T: shift, scale
};
std::shared_ptr<const ModulationBank> make_bank(Ops& ops, const Source& source, const ModulationPlan& plan, DType type,
                                                const Control& control);
int64_t bank_bytes(const DitConfig& config, int64_t rows, int64_t final_rows, DType type);

}  // namespace h3::dit
