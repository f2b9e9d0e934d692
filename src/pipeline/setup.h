// What a front end starts from: flags of the model and the device, and looking without running.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/log.h"
#include "pipeline/placement.h"
#include "pipeline/report.h"

namespace h3 {

struct SessionOptions {
  std::vector<std::string> models;  // files and folders; none = the embedded demo model
  std::string tokenizer;
  std::string partition, qkv_order;                // "" = as the files declare
  int tap = 0;                                     // hidden state of the text encoder; 0 = the model's own
  std::map<std::string, std::string> turbo_files;  // adapters that requests may name: name, file
  bool lora_partial = false;                       // leave out tensors of adapters that fit nothing
  std::string device = "auto";
  int threads = 0;    // 0 = one per CPU
  bool keep = false;  // keep components loaded between runs
  MemoryBudget budget;
  int synthetic_layers = 0;  // above 0: random weights of release size instead of files
  std::string synthetic_format;  // of the matrices of their layers: "" = bf16, "q4tp", "fp8"
  std::string prepared;      // a file of h3 prepare; "" = none
  int64_t ram_limit = 0;     // bytes of RAM a run may take; 0 = no limit but the machine's
  bool shadow = false;       // repeat every operation on the oracle and stop where the two differ
};

struct DeviceInfo {
  std::string name, detail, refused;  // refused: why it cannot be used; empty = usable
};
std::vector<DeviceInfo> list_devices(Log& log);

// What model files are and what they still need (pipeline/inspect.h), for a terminal or as JSON.
std::string describe_models(const SessionOptions& options, bool json);

// What can be asked of the model, without a device and without reading weights.
ModelFacts read_facts(const SessionOptions& options);

// "h3.mp4", or what a build without a video encoder can write.
std::string default_clip_name();

// The recipe inside a clip that this program wrote. Error(data) when there is none.
Recipe read_recipe(const std::string& clip);

// Error(usage) for an unknown partition or row order.
struct OpenOptions;
OpenOptions open_options(const SessionOptions& options);

}  // namespace h3
