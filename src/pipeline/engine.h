// From a resolved request to a clip. One Engine per set of model files and device; one run at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/context.h"
#include "base/control.h"
#include "ops/ops.h"
#include "pipeline/placement.h"
#include "pipeline/report.h"
#include "pipeline/request.h"
#include "pipeline/stage_sink.h"
#include "store/model_files.h"
#include "store/plan_package.h"

namespace h3 {

struct FrameRun;  // model/vae/video_vae.h

struct EngineOptions {
  OpenOptions open;
  int tap = 0;                   // hidden state of the text encoder; 0 = the model's own
  int synthetic_layers = 0;      // above 0: random weights of release size with this many layers instead of files
  std::string synthetic_format;  // of the matrices of their layers: "" = bf16, "q4tp", "fp8"
  bool keep = false;  // keep every component loaded between stages and runs (servers); otherwise each is released
                      // as soon as it has done its part, so that the text encoder and the transformer never coexist
  std::map<std::string, std::string> turbo_files;  // adapters that requests may name
  bool lora_partial = false;
  std::string device;    // as recipes name it; "" = the name of the Ops
  std::string prepared;  // a file of h3 prepare; "" = none
  MemoryBudget budget;
  int64_t ram_limit = 0;  // bytes of anonymous memory that the process may hold; 0 = no limit
};

// Where the parts of a finished clip go besides files.
struct RunHooks {
  StageSink sink;
  std::function<void(const FrameRun& run)> on_frames;                              // in order
  std::function<void(const std::vector<float>& samples, int64_t count)> on_audio;  // [2, count]
  // A small picture of the clip as step `step` of `steps` expects it (pipeline/preview.h); costs a download per step,
  // and a fit when the video VAE is new here.
  std::function<void(int step, int steps, const Image& picture)> on_preview;
  bool text_only = false;                           // ends when the prompt embeddings went to the sink
  std::function<void(const char* stage)> on_stage;  // before each
  bool dry = false;                                 // the Ops compute nothing (plan.h): results are not judged
  // May replace the latent of visual condition `index` before it is noised (parity).
  std::function<void(size_t index, std::vector<float>& latent)> adjust_condition;
};

class Engine {
 public:
  // Opens the files and recognises their parts; reads no weights yet.
  Engine(Context& context, Ops& ops, EngineOptions options);
  // The same files on another device, nothing loaded.
  Engine(const Engine& other, Context& context, Ops& ops);
  ~Engine();

  Context& context() const { return context_; }
  Ops& ops() const { return ops_; }
  const ModelFacts& facts() const { return facts_; }
  const ModelFiles& files() const { return files_; }
  Recipe recipe(const Resolved& resolved) const;
  // How a run of this request takes turns on the device; what run() follows. Error(memory) when nothing fits. On the
  // host and without a budget nothing is planned: no phases.
  Placement placement(const Resolved& resolved);
  const Component& transformer(const Resolved& resolved) const;  // Error(usage) without one
  const Component& any_transformer() const;                      // of either half; likewise

  // Errors carry the stage they happened in. On any error, and on a stop, no output file is left behind.
  RunReport run(const Resolved& resolved, const Control& control, const RunHooks& hooks = {});
  void release();  // every component

 private:
  struct Parts;
  friend class Run;
  void use_plans(const Component& dit, Compute compute);

  Context& context_;
  Ops& ops_;
  EngineOptions options_;
  ModelFiles files_;
  ModelFacts facts_;
  std::unique_ptr<Parts> parts_;
  int64_t held_ = 0;                             // on the device before anything was loaded
  std::map<std::string, Placement> placements_;  // by what they depend on
  std::optional<PlanPackage> plans_;
  std::pair<const TensorSource*, Compute> planned_{};  // what the plans were last offered for
};

}  // namespace h3
