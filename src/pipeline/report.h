// What a run says about itself afterwards.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "pipeline/placement.h"
#include "pipeline/request.h"
#include "pipeline/watchdog.h"

namespace h3 {

const char* engine_version();

struct StageTime {
  std::string stage;
  double seconds = 0;
  int64_t items = 0;  // layers, steps, frames ...
};

struct ModelId {
  std::string role, id, origin;  // origin: the path as the user gave it
};

// What reproduces a clip. The same run always writes the same bytes of it: no times, no dates, no thread count.
struct Recipe {
  Request request;  // explicit, without the names of output files
  std::vector<InputFile> inputs;
  std::vector<std::string> models;  // paths and flags the model was opened with
  std::string tokenizer, partition, qkv_order;
  std::vector<ModelId> model_ids;
  int tap = 0;               // as given; 0 = the model's own
  int synthetic_layers = 0;  // of random weights in place of files
  std::string synthetic_format;  // of the matrices of their layers: "" = bf16, "q4tp", "fp8"
  bool lora_partial = false;  // tensors of adapters that fit nothing were left out
  std::string device;         // "cpu"
  Json acceleration;          // what was left out or added, evaluation by evaluation; null for a plain exact run

  Json to_json() const;
  // Error(data) naming `what` when the text is not a recipe of this program.
  static Recipe parse(const std::string& text, const std::string& what);
};

struct RunReport {
  Recipe recipe;
  Json resolved;
  std::vector<std::string> files, notes, warnings;
  std::vector<StageTime> stages;
  std::vector<Finding> findings;
  double seconds = 0;
  int evaluations = 0, reused = 0, forecast = 0;  // evaluations: those that ran in full
  Json acceleration;                              // the same for every run
  int64_t peak_ram = 0, peak_device = 0;          // bytes; the device's is 0 on the host
  int64_t text_rows = 0, sequence_rows = 0;
  Placement placement;

  Json to_json() const;
};

// The largest resident set of this process so far, in bytes.
int64_t peak_resident_bytes();

}  // namespace h3
