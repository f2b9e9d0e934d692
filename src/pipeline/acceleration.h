// What makes a run cheaper than its model: adapters, step policies, sparse attention. Presets, explicit fields and
// their refused combinations are settled here and nowhere else (spec acceleration 16).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/dit/dit.h"
#include "model/lora/recipe.h"
#include "pipeline/report.h"
#include "pipeline/request.h"
#include "sampling/policy.h"

namespace h3 {

// One adapter of a run, its file looked into.
struct AdapterChoice {
  std::string path, id;
  double strength = 1;
};

struct Acceleration {
  std::string preset = "exact";
  std::vector<AdapterChoice> adapters;  // in order
  std::optional<lora::Recipe> recipe;   // of the distilled adapter among them
  PolicySpec policy;
  AttentionOptions attention;
  bool lossy() const;  // what it leaves out changes the result: a cache, sparse or 8-bit attention
};

// Error(usage | data | io) with one line for unknown names, files that are no adapter, and combinations that are
// refused.
const Acceleration& acceleration_of(const Resolved& resolved);  // nothing settled: exact
Acceleration settle_acceleration(const Request& request, const ModelFacts& facts);

// Fills in what the run left out or added: counts, the deterministic part that is embedded in the clip (preset,
// adapters, every evaluation as run, reused or forecast with the metric the decision was taken on), and a warning for a
// policy that never acted.
void report_acceleration(const Acceleration& settled, const Schedule& schedule, const std::vector<StepRecord>& records,
                         const SparseReport& sparse, RunReport& report);

// "dense", "8bit", "sparse[:TAU][,dense_steps=10][,dense_blocks=2][,minimum=24576][,dense=8bit]"; and back, with every
// value.
AttentionOptions parse_attention(const std::string& text);
std::string attention_text(const AttentionOptions& options);

std::vector<std::string> preset_names();
int preset_steps(const std::string& preset);  // 0 = the preset does not say

}  // namespace h3
