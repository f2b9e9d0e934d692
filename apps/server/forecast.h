// What a request will need, before it is made and without disturbing the worker: the pipeline's plan (pipeline/plan.h),
// made in this process for the worker's device.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/json.h"
#include "pipeline/session.h"

namespace h3::server {

// Between the worker, which knows its machine, and the server.
Json machine_json(const PlanMachine& machine);
PlanMachine machine_from_json(const Json& json);

class Forecast {
 public:
  explicit Forecast(SessionOptions options) : options_(std::move(options)) { options_.keep = true; }  // as the worker

  // Several threads may ask; one plan is made at a time, and the last ones are remembered. Errors as of a run.
  RunPlan plan(const Resolved& resolved, const PlanMachine& machine);

 private:
  static constexpr size_t kMost = 64;
  SessionOptions options_;
  std::mutex mutex_;
  std::unique_ptr<Planner> planner_;  // made with the first plan
  std::map<std::string, RunPlan> known_;
};

}  // namespace h3::server
