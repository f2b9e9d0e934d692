#include "apps/server/forecast.h"

#include <condition_variable>
#include <memory>
#include <vector>

#include "base/error.h"

namespace h3::server {
namespace {

// Everything that a plan depends on. Seeds, words and the content of pictures change nothing.
std::string key_of(const Resolved& resolved, const PlanMachine& machine) {
  Request request = resolved.request;
  request.prompt = "x";
  request.seed.reset();
  request.first_frame.clear();
  request.last_frame.clear();
  request.references.clear();
  std::string key = request.to_json().dump();
  key += strf(" %lld tokens, %zu keyframes", static_cast<long long>(resolved.prompt_tokens), resolved.keyframes.size());
  for (const ReferenceInput& reference : resolved.references) {
    key += strf(", %dx%d %d %zu", reference.width, reference.height, reference.encoded_frames, reference.sound.size());
  }
  return key + machine_json(machine).dump();
}

}  // namespace

Json machine_json(const PlanMachine& machine) {
  Json json = Json::object({{"device", machine.device}, {"program", machine.program}, {"ram", machine.ram}});
  return json.set("vram", machine.vram).set("rates", machine.rates);
}

PlanMachine machine_from_json(const Json& json) {
  PlanMachine machine;
  machine.device = json.at("device").as_string();
  machine.program = json.at("program").as_int();
  machine.ram = json.at("ram").as_int();
  machine.vram = json.at("vram").as_int();
  machine.rates = json.at("rates");
  return machine;
}

RunPlan Forecast::plan(const Resolved& resolved, const PlanMachine& machine) {
  PlanMachine lasting = machine;  // what is free changes from moment to moment, and no plan with it
  lasting.ram = lasting.vram = 0;
  const std::string key = key_of(resolved, lasting);
  std::promise<RunPlan> promise;
  std::shared_future<RunPlan> future;
  bool ours = false;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = known_.find(key); found != known_.end()) {
      future = found->second;
    } else {
      if (known_.size() >= kMost) known_.clear();
      future = promise.get_future().share();
      known_.emplace(key, future);
      ours = true;
    }
  }
  if (ours) {
    try {
      promise.set_value(make_(resolved, lasting));
    } catch (...) {
      promise.set_exception(std::current_exception());
      const std::lock_guard lock(mutex_);
      known_.erase(key);
    }
  }
  RunPlan plan = future.get();
  plan.ram.available = machine.ram;
  plan.vram.available = machine.vram;
  return plan;
}

namespace {

// Each has the model's tables and a tokenizer: threads beyond these wait for one.
constexpr int kPlanners = 3;

class Planners {
 public:
  explicit Planners(SessionOptions options) : options_(std::move(options)) {}

  RunPlan plan(const Resolved& resolved, const PlanMachine& machine) {
    std::unique_ptr<Planner> planner = take();
    const std::shared_ptr<void> place(nullptr, [&](void*) { give(std::move(planner)); });
    if (!planner) planner = std::make_unique<Planner>(options_);
    return planner->plan(resolved, machine);
  }

 private:
  // None: there is room for another one.
  std::unique_ptr<Planner> take() {
    std::unique_lock lock(mutex_);
    free_.wait(lock, [this] { return busy_ < kPlanners; });
    ++busy_;
    if (idle_.empty()) return nullptr;
    std::unique_ptr<Planner> planner = std::move(idle_.back());
    idle_.pop_back();
    return planner;
  }
  void give(std::unique_ptr<Planner> planner) {
    const std::lock_guard lock(mutex_);
    --busy_;
    if (planner) idle_.push_back(std::move(planner));
    free_.notify_one();
  }

  const SessionOptions options_;
  std::mutex mutex_;
  std::condition_variable free_;
  int busy_ = 0;
  std::vector<std::unique_ptr<Planner>> idle_;
};

}  // namespace

Forecast::Make planners(SessionOptions options) {
  options.keep = true;  // as the worker
  return [all = std::make_shared<Planners>(std::move(options))](const Resolved& resolved, const PlanMachine& machine) {
    return all->plan(resolved, machine);
  };
}

}  // namespace h3::server
