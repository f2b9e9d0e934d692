// What model files are, by their tensors, and what they still need: the data of `info`. Reads headers and small
// tensors.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "store/model_files.h"

namespace h3 {

struct FormatUse {
  int64_t tensors = 0, bytes = 0;
};

struct ComponentInfo {
  Role role = Role::unknown;
  Spelling spelling = Spelling::comfy;
  std::string origin, id, container;  // container: "safetensors", "GGUF", ...
  int64_t files = 0, tensors = 0, values = 0, bytes = 0;
  std::map<std::string, FormatUse> formats;           // by name of the storage format
  std::vector<std::pair<std::string, int64_t>> dims;  // "hidden" 5376, ... in reading order
  std::string config;                                 // "config.json beside the weights" or "from shapes"
  // Transformers only: value and where it comes from. One file in both slots of a repository serves both partitions.
  std::vector<std::pair<std::string, std::string>> provenance;
  std::vector<std::string> problems;  // why it cannot be loaded; empty when it can
};

struct TaskInfo {
  std::string name;                // "t2va", "fl2va", "ref2va"
  std::vector<std::string> needs;  // what is missing for it; empty = ready
};

struct ModelInfo {
  std::vector<ComponentInfo> components;
  std::string tokenizer;  // where its data lie; empty = none
  Json defaults;
  std::vector<TaskInfo> tasks;

  Json to_json() const;
  std::string to_text() const;  // lines for a terminal
};

// Open the files with OpenOptions::inspect, so that damaged roles are reported rather than refused.
ModelInfo inspect_models(const ModelFiles& files);

}  // namespace h3
