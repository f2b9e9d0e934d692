// What a request will need before anything is computed: memory, disk, time, and the kernels that will do it. The plan
// is the run itself on operations that only count (ops/dry.h), so what a run learns to do is planned without being
// told.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "ops/dry.h"
#include "pipeline/request.h"

namespace h3 {

class Engine;

struct PlanPart {
  std::string name;   // "transformer", "working memory of denoise", "program"
  int64_t bytes = 0;  // while it is held
};

// One memory: the host's RAM or a card's.
struct MemoryPlan {
  std::vector<PlanPart> parts;  // not all are held at the same time
  std::string peak_stage;
  int64_t peak = 0;
  int64_t available = 0;  // what may be used: the limit asked for, else what the system has; 0 = unknown
  bool limited = false;   // `available` is a limit that was asked for
  bool fits() const { return available == 0 || peak <= available; }
};

struct PlanStage {
  std::string stage;
  double seconds = 0;
};

struct RunPlan {
  std::string device;
  MemoryPlan ram;           // anonymous memory of the process; mapped model files come and go with the page cache
  MemoryPlan vram;          // empty on the host
  int64_t disk = 0;         // bytes written, about; 0 = no file
  int64_t disk_free = 0;    // where they go; 0 = unknown
  double weight_error = 0;  // of int8: |W - int8(W)| / |W| of a sample of the weights, the worst format
  double seconds = 0;       // without encoding the file; -1 = not known
  std::vector<PlanStage> stages;
  std::vector<ShapeUse> shapes;  // distinct matmuls and attentions, the most work first

  Json to_json() const;
  // For a terminal. `explain` adds, per shape, why better kernels refused.
  std::string to_text(bool explain) const;
};

struct PlanOptions {
  int64_t ram_limit = 0, vram_limit = 0;  // bytes; 0 = what the machine has
  bool fresh_rates = false;               // measure the machine again instead of trusting the cache
  bool time = true;                       // estimate seconds
};

RunPlan plan_run(Engine& engine, const Resolved& resolved, const PlanOptions& options);

// What a plan must know of a device that another process owns, and of that process.
struct PlanMachine {
  std::string device = "cpu";  // as Ops::name
  int64_t program = 0;         // bytes of its anonymous memory before it loads a model
  int64_t ram = 0, vram = 0;   // bytes that it may use; 0 = unknown
  Json rates;                  // measured_rates() of that process; null = no seconds
};

// The same plan without the device. `engine` is on any operations; nothing is loaded into it. The memory of a card is
// what a run takes that keeps all of its parts there, and PlanStage::seconds is -1 for work of a kind that was not
// measured.
RunPlan plan_elsewhere(Engine& engine, const Resolved& resolved, const PlanMachine& machine);
// The speed of the device for every kind of work in this request (pipeline/rates.h): measured, or from the cache.
Json measured_rates(Engine& engine, const Resolved& resolved);
// What the host could still give to a process that has `held` bytes of it; 0 = unknown.
int64_t ram_for(int64_t held);

// Error(memory) with what is needed, what there is and what would help, when a memory of the plan does not fit.
void check_plan(const RunPlan& plan, const Resolved& resolved);

std::string bytes_text(int64_t bytes);      // "1.25 GiB"
std::string duration_text(double seconds);  // "14 s", "3 min 20 s", "2 h 10 min"

// Memory of a process that no file backs (RssAnon), now; 0 where the system does not tell. pid 0: this one.
int64_t anonymous_bytes(int pid = 0);
// Error(memory) when this process holds more of that than `limit`; 0 = no limit. For memory that no device counts.
void check_ram(int64_t limit);

}  // namespace h3
