// What a run will hold at its peak, and how the parts of a model take turns so that it fits. The figures come from the
// model's own code run on a back end that only counts (ops/counting.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/layer_stack.h"
#include "ops/ops.h"
#include "pipeline/request.h"
#include "store/model_files.h"

namespace h3 {

enum class PlanMode : uint8_t {
  automatic,  // the first of the following that fits
  resident,   // a part is loaded whole; the decoders are there before the sampling starts
  offload,    // one part at a time
  stream  // and of the text encoder and the transformer only some layers stay; the others come when they are reached
};
const char* name_of(PlanMode mode);

// Hard caps in bytes; 0 = what the device, respectively the machine, has.
struct MemoryBudget {
  PlanMode mode = PlanMode::automatic;
  int64_t vram = 0, ram = 0;
  bool given() const { return mode != PlanMode::automatic || vram > 0 || ram > 0; }
};

// What of --vram is left for allocations: the driver and the libraries' code take a share of their own. 0 = no cap.
int64_t cap_of_allocations(const MemoryBudget& budget);

// What a run may hold on the device: the cap of the budget, else what the device has. 0 = it does not say.
int64_t usable_bytes(const Device& device, const MemoryBudget& budget);

// "12G", "800M", "1.5GiB", "12000000000": bytes. K, M, G, T are powers of 1024. Error(usage) naming `flag`.
int64_t parse_memory(const std::string& flag, const std::string& text);
PlanMode parse_plan_mode(const std::string& text);  // Error(usage)

struct PlacementPhase {
  std::string name;
  int64_t bytes = 0;  // on the device, at most
};

struct Placement {
  PlanMode mode = PlanMode::resident;
  int64_t text_layers = kAllLayers, dit_layers = kAllLayers;  // that stay on the device
  bool decoders_first = true;  // loaded before the sampling, so that one that cannot be loaded is found out early
  bool keep = false;           // every part stays for the next run
  std::vector<PlacementPhase> phases;  // empty: nothing was planned
  int64_t peak = 0;                    // of the phases
  int64_t available = 0;               // on the device
  int64_t spare = 0;                   // of it beside the peak, where parts are kept; INT64_MAX: not known
  int64_t adapters = 0;                // live adapters of the request, within "denoise"
  int64_t host_bytes = 0;              // RAM of converted weights and staging, beside mapped files
  Json to_json() const;
};

struct PlacementInput {
  Ops& ops;
  const ModelFiles& files;
  const Resolved& resolved;
  int tap = 0;
  MemoryBudget budget;
  bool keep = false;  // asked for
  bool lora_partial = false;
  int64_t held = 0;  // bytes on the device that belong to no part of the model
};

// Error(memory) with the bytes asked and available when nothing that the budget allows fits.
Placement plan_placement(const PlacementInput& input);

}  // namespace h3
