#include "apps/server/forecast.h"

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
  const std::lock_guard lock(mutex_);
  auto found = known_.find(key);
  if (found == known_.end()) {
    if (!planner_) planner_ = std::make_unique<Planner>(options_);
    if (known_.size() >= kMost) known_.clear();
    found = known_.emplace(key, planner_->plan(resolved, lasting)).first;
  }
  RunPlan plan = found->second;
  plan.ram.available = machine.ram;
  plan.vram.available = machine.vram;
  return plan;
}

}  // namespace h3::server
