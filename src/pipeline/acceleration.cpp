#include "pipeline/acceleration.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/nearest.h"
#include "model/lora/adapter.h"

namespace h3 {
namespace {

struct Preset {
  const char *name, *cache, *attention;
  int steps;       // 0 = the model's own
  bool distilled;  // needs a turbo adapter
};

// spec acceleration 2.4, 3.2, 5.4.
constexpr Preset kPresets[] = {
    {"exact", "none", "dense", 0, false},
    {"balanced", "first-block", "sparse", 0, false},
    {"ultra", "forecast", "sparse", 15, false},
    {"turbo", "none", "dense", 0, true},
};

const Preset& preset_of(const std::string& name) {
  for (const Preset& preset : kPresets) {
    if (name == preset.name) return preset;
  }
  const std::vector<std::string> names = preset_names();
  fail(Code::usage, "preset: \"%s\" is not known, give exact, balanced, ultra or turbo%s", name.c_str(),
       suggestion(name, names).c_str());
}

double number_in(const char* name, const std::string& text, double low, double high, bool whole) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool ok = end != text.c_str() && *end == '\0' && std::isfinite(value) && value >= low && value <= high;
  if (!ok || (whole && value != std::floor(value))) {
    fail(Code::usage, "attention: %s = \"%s\" is not allowed, give %s from %g to %g", name, text.c_str(),
         whole ? "a whole number" : "a number", low, high);
  }
  return value;
}

// What may not go together, and why.
struct Conflict {
  bool holds;
  std::string text;
};

void refuse(std::initializer_list<Conflict> conflicts) {
  for (const Conflict& conflict : conflicts) {
    if (conflict.holds) fail(Code::usage, "%s", conflict.text.c_str());
  }
}

void check_combinations(const Request& request, const Preset& preset, const Acceleration& out) {
  const bool cached = out.policy.mode != "none", distilled = out.recipe.has_value();
  const std::string cache = out.policy.mode;
  refuse({
      {preset.distilled && !distilled,
       "preset: turbo needs a turbo adapter, give one (turbo, or a 4step or 8step LoRA)"},
      {distilled && cached && request.cache.empty() && request.policy_trace.empty(),
       strf("preset: %s caches steps, which is not possible with the %s adapter: its %d evaluations leave nothing to "
            "reuse; use preset turbo",
            preset.name, distilled ? out.recipe->name.c_str() : "", distilled ? out.recipe->steps : 0)},
      {distilled && cached,
       strf(
           "cache: %s is not possible with the %s adapter: its %d evaluations leave nothing to reuse; drop one of them",
           cache.c_str(), distilled ? out.recipe->name.c_str() : "", distilled ? out.recipe->steps : 0)},
      {request.preset == "exact" && cached,
       strf("cache: %s leaves evaluations out, preset exact runs them all; drop one of them", cache.c_str())},
      {request.preset == "exact" && out.attention.sparse,
       "attention: sparse approximates, preset exact does not; drop one of them"},
      {request.preset == "exact" && out.attention.math == AttentionMath::eight_bit,
       "attention: 8bit approximates, preset exact does not; drop one of them"},
  });
}

std::string turbo_file(const std::string& name, const ModelFacts& facts) {
  const auto found = facts.turbo_files.find(name);
  if (found != facts.turbo_files.end()) return found->second;
  std::string known;
  for (const auto& [other, file] : facts.turbo_files) known += (known.empty() ? "" : ", ") + other;
  fail(Code::usage, "turbo: no adapter is called \"%s\", %s%s; name its file (turbo-lora %s=FILE)", name.c_str(),
       known.empty() ? "none has been named" : "there are ", known.c_str(), name.c_str());
}

void add_adapter(const AdapterRequest& asked, const std::string& turbo, Acceleration& out) {
  if (!std::isfinite(asked.strength) || std::fabs(asked.strength) > 100) {
    fail(Code::usage, "lora: strength %g of %s is not allowed, give -100 to 100, for example 1", asked.strength,
         asked.path.c_str());
  }
  lora::AdapterFile file = lora::open_adapter(asked.path);
  out.adapters.push_back({asked.path, file.id, asked.strength});
  if (!turbo.empty() && !file.recipe) file.recipe = lora::recipe_named(turbo);
  if (!file.recipe) return;
  if (const std::optional<lora::Recipe> named = lora::recipe_named(turbo);
      named && named->steps != file.recipe->steps) {
    fail(Code::usage, "turbo: %s is called %s, but its %s says %d steps", asked.path.c_str(), turbo.c_str(),
         file.recipe->from.c_str(), file.recipe->steps);
  }
  if (out.recipe && out.recipe->steps != file.recipe->steps) {
    fail(Code::usage, "lora: %s and another adapter were distilled for %d and %d steps, give one of them",
         asked.path.c_str(), file.recipe->steps, out.recipe->steps);
  }
  out.recipe = file.recipe;
}

PolicySpec settle_policy(const Request& request, const Preset& preset) {
  const std::vector<StepAction> trace = parse_trace(request.policy_trace);
  std::string cache = request.cache.empty() ? preset.cache : request.cache;
  if (request.cache.empty() && !trace.empty()) {  // the trace says what kind it is
    const auto has = [&](StepAction action) { return std::find(trace.begin(), trace.end(), action) != trace.end(); };
    cache = has(StepAction::forecast) ? "forecast" : has(StepAction::reuse) ? "first-block" : "none";
  }
  PolicySpec spec = parse_policy(cache);
  spec.trace = trace;
  return spec;
}

}  // namespace

const Acceleration& acceleration_of(const Resolved& resolved) {
  static const Acceleration exact;
  return resolved.acceleration ? *resolved.acceleration : exact;
}

bool Acceleration::lossy() const {
  return policy_row(policy.mode).lossy || attention.sparse || attention.math != AttentionMath::exact;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

int preset_steps(const std::string& preset) { return preset.empty() ? 0 : preset_of(preset).steps; }

AttentionOptions parse_attention(const std::string& text) {
  AttentionOptions options;
  std::string rest = text;
  const size_t comma = std::min(rest.find(','), rest.size());
  const std::string head = rest.substr(0, comma), mode = head.substr(0, head.find(':'));
  const bool alone = head == mode && comma == rest.size();
  if (mode == "8bit" && alone) options.math = AttentionMath::eight_bit;
  if ((mode == "dense" || mode == "8bit") && alone) return options;
  if (mode != "sparse") {
    fail(Code::usage, "attention: \"%s\" is not known, give dense, 8bit or sparse[:TAU]", text.c_str());
  }
  options.sparse = true;
  if (head != mode) options.tau = static_cast<float>(number_in("tau", head.substr(mode.size() + 1), -1e6, 1e6, false));
  rest = comma < rest.size() ? rest.substr(comma + 1) : "";
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(','), rest.size());
    const std::string word = rest.substr(0, end), name = word.substr(0, word.find('='));
    const std::string value = name.size() < word.size() ? word.substr(name.size() + 1) : "";
    rest = end < rest.size() ? rest.substr(end + 1) : "";
    if (name == "dense_steps") {
      options.dense_steps = static_cast<int>(number_in("dense_steps", value, 0, 1000, true));
    } else if (name == "dense_blocks") {
      options.dense_blocks = static_cast<int>(number_in("dense_blocks", value, 0, 1000, true));
    } else if (name == "minimum") {
      options.minimum = static_cast<int64_t>(number_in("minimum", value, 0, 1e9, true));
    } else if (name == "dense") {
      if (value != "exact" && value != "8bit") {
        fail(Code::usage, "attention: dense = \"%s\" is not allowed, give exact or 8bit", value.c_str());
      }
      options.math = value == "8bit" ? AttentionMath::eight_bit : AttentionMath::exact;
    } else {
      fail(Code::usage, "attention: sparse has no parameter \"%s\"; it has dense_steps, dense_blocks, minimum, dense",
           name.c_str());
    }
  }
  return options;
}

std::string attention_text(const AttentionOptions& options) {
  const bool eight_bit = options.math == AttentionMath::eight_bit;
  if (!options.sparse) return eight_bit ? "8bit" : "dense";
  return strf("sparse:%.9g,dense_steps=%d,dense_blocks=%d,minimum=%lld%s", static_cast<double>(options.tau),
              options.dense_steps, options.dense_blocks, static_cast<long long>(options.minimum),
              eight_bit ? ",dense=8bit" : "");
}

Acceleration settle_acceleration(const Request& request, const ModelFacts& facts) {
  Acceleration out;
  out.preset = request.preset.empty() ? "exact" : request.preset;
  const Preset& preset = preset_of(out.preset);
  if (!request.turbo.empty() && request.turbo != "none") {
    add_adapter({turbo_file(request.turbo, facts), 1}, request.turbo, out);
  }
  for (const AdapterRequest& adapter : request.adapters) add_adapter(adapter, "", out);
  if (request.turbo.empty() && request.adapters.empty()) {
    for (const std::string& path : facts.adapters) add_adapter({path, 1}, "", out);
  }
  out.policy = settle_policy(request, preset);
  out.attention = parse_attention(request.attention.empty() ? preset.attention : request.attention);
  if (out.attention.math == AttentionMath::eight_bit && !facts.eight_bit_refused.empty()) {
    fail(Code::usage, "attention: 8bit is not possible, %s; give dense", facts.eight_bit_refused.c_str());
  }
  check_combinations(request, preset, out);
  return out;
}

namespace {

Json acceleration_report(const Acceleration& settled, const Schedule& schedule, const std::vector<StepRecord>& records,
                         const SparseReport& sparse) {
  Json json = Json::object({{"preset", settled.preset}, {"lossy", settled.lossy()}});
  Json adapters = Json::array();
  for (const AdapterChoice& adapter : settled.adapters) {
    adapters.push(Json::object({{"path", adapter.path}, {"id", adapter.id}, {"strength", adapter.strength}}));
  }
  json.set("adapters", std::move(adapters));
  if (settled.recipe) json.set("recipe", settled.recipe->name);
  json.set("cache", policy_text(settled.policy)).set("attention", attention_text(settled.attention));
  if (settled.attention.sparse) {
    json.set("sparse", Json::object({{"sparse_calls", sparse.sparse},
                                     {"dense_calls", sparse.dense},
                                     {"density", sparse.density},
                                     {"dense_because", sparse.reason}}));
  }
  Json steps = Json::array();
  for (size_t i = 0; i < records.size(); ++i) {
    Json step = Json::object({{"evaluation", static_cast<int64_t>(i)},
                              {"video_sigma", schedule.video.sigma[i]},
                              {"audio_sigma", schedule.audio.sigma[i]},
                              {"action", name_of(records[i].action)}});
    if (!std::isnan(records[i].metric)) step.set("metric", records[i].metric);
    if (*records[i].reason != '\0') step.set("reason", records[i].reason);
    steps.push(std::move(step));
  }
  return json.set("evaluations", std::move(steps));
}

}  // namespace

void report_acceleration(const Acceleration& settled, const Schedule& schedule, const std::vector<StepRecord>& records,
                         const SparseReport& sparse, RunReport& report) {
  for (const StepRecord& record : records) {
    report.evaluations += record.action == StepAction::run;
    report.reused += record.action == StepAction::reuse;
    report.forecast += record.action == StepAction::forecast;
  }
  report.acceleration = acceleration_report(settled, schedule, records, sparse);
  if (settled.lossy() || !settled.adapters.empty()) report.recipe.acceleration = report.acceleration;
  if (settled.policy.mode != "none" && report.reused + report.forecast == 0) {
    report.warnings.push_back("cache: " + settled.policy.mode + " never acted, every evaluation ran");
  }
  if (settled.attention.sparse && sparse.sparse == 0) {
    report.warnings.push_back("attention: sparse never acted, all of it ran dense: " + sparse.reason);
  }
}

}  // namespace h3
