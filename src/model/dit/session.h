// The forward of one request over a loaded denoiser.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/dit/adaln.h"
#include "model/dit/adapter.h"
#include "model/dit/block.h"
#include "model/dit/dit.h"
#include "model/layer_stack.h"
#include "ops/workspace.h"

namespace h3::dit {

// Weights on the device, shared by sessions.
struct Model {
  Ops& ops;
  Source source;  // what the AdaLN rows are computed from, per schedule
  DType activation;
  std::unique_ptr<Linear> video_in, audio_in, text_in, video_out, audio_out;
  std::vector<Block> refiner;
  LayerStack<Block> blocks;
  Tensor refiner_norm, final_norm;  // [hidden] f32
};

// Rotation tables [S, 3 pairs] f32 (spec dit 2.6): the position is rounded to f32 before the f32 product.
struct RotaryTables {
  std::vector<float> cos, sin;
};
RotaryTables rotary_tables(const std::vector<double>& position, const std::vector<float>& inv_freq);

// adapter_rank: the largest sum of ranks beside one linear; 0 without adapters.
std::vector<Slot> session_slots(const DitConfig& config, const PackedLayout& layout, int64_t evaluations, DType type,
                                int64_t adapter_rank);

std::unique_ptr<DitSession> start_session(Model& model, DitRequest request, const std::vector<LoadedUse>& uses,
                                          const ModulationPlan& plan, std::shared_ptr<const ModulationBank> bank,
                                          const Control& control);

}  // namespace h3::dit
