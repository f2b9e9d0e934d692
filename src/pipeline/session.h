// What a front end needs and nothing below it: a device, a model, and runs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/control.h"
#include "base/log.h"
#include "pipeline/plan.h"
#include "pipeline/report.h"
#include "pipeline/request.h"
#include "pipeline/setup.h"

namespace h3 {

// A finished clip as it is made, for callers that do not want a file.
struct FrameSink {
  std::function<void(const float* planar_rgb, int first, int frames)> frames;  // [3, frames, height, width] in 0..1
  std::function<void(const float* samples, int64_t count)> audio;              // [2, count], before the frames
  // After every evaluation: the clip that it expects, small (pipeline/preview.h).
  std::function<void(int step, int steps, const Image& picture)> preview;
  std::function<void(const char* stage)> stage;  // before each
};

class Session {
 public:
  Session(const SessionOptions& options, Log& log);
  ~Session();

  const ModelFacts& facts() const;
  std::string device() const;
  const std::vector<StageTime>& opened() const;  // what the constructor did
  // Validates against this model.
  Resolved resolve(const Request& request) const;
  // What the run will need; the limits are those of SessionOptions.
  RunPlan plan(const Resolved& resolved, bool fresh_rates = false);
  // Renders; files as the request names them. Nothing is left behind on an error or a stop.
  RunReport run(const Resolved& resolved, const Control& control, const FrameSink& sink = {});
  // Encodes the prompt with its keyframes and writes what Request::prompt_embeds reads. Needs no transformer.
  RunReport encode(const Request& request, const std::string& file, const Control& control);
  // Tries plans for sequences of so many rows in the arithmetic of `request` and writes them to `file`
  // (pipeline/prepare.h); the report.
  Json prepare(const Request& request, const std::vector<int64_t>& rows, const std::string& file,
               const Control& control);
  std::vector<ModelId> model_ids() const;
  Placement placement(const Resolved& resolved);  // Engine::placement
  // For a Planner in another process: this device, its speed at the work of `resolved`, and its memory.
  PlanMachine machine(const Resolved& resolved);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Plans for a device that another process owns, without touching it: reads no weights.
class Planner {
 public:
  explicit Planner(const SessionOptions& options);
  ~Planner();
  RunPlan plan(const Resolved& resolved, const PlanMachine& machine);  // one at a time

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace h3
