// What a request will need, before it is made and without disturbing the worker: the pipeline's plan (pipeline/plan.h),
// made in this process for the worker's device.
#pragma once

#include <functional>
#include <future>
#include <map>
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
  // May be called by several threads at once.
  using Make = std::function<RunPlan(const Resolved& resolved, const PlanMachine& machine)>;
  explicit Forecast(Make make) : make_(std::move(make)) {}

  // Several threads may ask. Who asks what somebody else has asked waits for that plan; nobody waits for another one.
  // The last plans are remembered. Errors as of a run; they are not remembered.
  RunPlan plan(const Resolved& resolved, const PlanMachine& machine);

 private:
  static constexpr size_t kMost = 64;
  const Make make_;
  std::mutex mutex_;  // of what follows; not held while a plan is made
  std::map<std::string, std::shared_future<RunPlan>> known_;
};

// Plans for the worker that `options` start, a few at once.
Forecast::Make planners(SessionOptions options);

}  // namespace h3::server
