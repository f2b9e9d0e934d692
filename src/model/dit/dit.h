// The denoiser (dit.md). One Dit per loaded transformer; one DitSession per request.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/control.h"
#include "model/dit/layout.h"
#include "ops/ops.h"
#include "store/model_files.h"

namespace h3 {

struct DitConfig {
  int64_t hidden = 0, layers = 0, refiner_layers = 0, heads = 0, head_dim = 0, ffn = 0;
  int64_t video_row = 96, audio_row = 32, text_dim = 0, freq_dim = 256, time_hidden = 0, time_dim = 0;
  int64_t curve_rank = 0, curve_points = 0;  // pruned AdaLN; 0 = full
};

struct DitOptions {
  Compute compute = Compute::f32;   // f32 or bf16 activations follow from it
  DType activation = DType::f32;
};

class Dit;

// All state of one request: packed layout, refined text, AdaLN rows of every time of the schedule, workspace.
class DitSession {
 public:
  virtual ~DitSession() = default;
  // Evaluates the velocity at evaluation `step`. video_rows [Nv, 96] and audio_rows [Na, 32] are f32 on the device,
  // *target* rows only; condition rows were given at start. Results: velocities of the target rows, f32.
  // Split into prefix / rest / head so that a step policy can sit between (style D8).
  virtual void prefix(int step, const View& video_rows, const View& audio_rows) = 0;  // embed + first block(s)
  virtual void rest(int step) = 0;                                                    // remaining blocks
  virtual void head(int step, const View& video_velocity, const View& audio_velocity) = 0;
  virtual const View& residual() const = 0;                                           // [S, hidden], the stream between the parts
};

struct DitRequest {
  const PackedLayout* layout = nullptr;   // outlives the session
  std::vector<float> text;                // [Nt, text_dim]
  std::vector<float> condition_video;     // [rows, 96] noised and patchified
  std::vector<float> condition_audio;     // [rows, 32]
  std::vector<float> video_times, audio_times;  // one per evaluation
};

class Dit {
 public:
  virtual ~Dit() = default;
  virtual const DitConfig& config() const = 0;
  virtual std::unique_ptr<DitSession> start(const DitRequest& request, const Control& control) = 0;
};

std::unique_ptr<Dit> load_dit(Ops& ops, const Component& component, const DitOptions& options);

}  // namespace h3
