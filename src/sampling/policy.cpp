#include "sampling/policy.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "sampling/caches/list.h"

namespace h3 {
namespace {

class None final : public StepPolicy {
 public:
  bool needs_model(int, const Streams&) override {
    record(StepAction::run, "");
    return true;
  }
};

constexpr StepAction kActions[] = {StepAction::run, StepAction::reuse, StepAction::forecast};

const PolicyRow kPolicies[] = {
    {"none", "every evaluation runs", false, StepAction::run, "", {}, make_none},
    {"first-block", "blocks after the first are reused while its residual changes little", true, StepAction::reuse,
     "threshold", kFirstBlockParameters, make_first_block},
    {"forecast", "evaluations are forecast from the last two that ran", true, StepAction::forecast, "",
     kForecastParameters, make_forecast},
    {"teacache", "the stack is reused while the changes of its input add up to little", true, StepAction::reuse,
     "threshold", kTeaCacheParameters, make_teacache},
    {"extrapolate", "every k-th evaluation runs, velocities in between are extrapolated", true, StepAction::forecast,
     "every", kExtrapolateParameters, make_extrapolate},
};

std::string listed_modes() {
  std::string text;
  for (const PolicyRow& row : kPolicies) text += (text.empty() ? "" : ", ") + std::string(row.name);
  return text;
}

const PolicyParameter& parameter_of(const PolicyRow& row, const std::string& name) {
  std::string known;
  for (const PolicyParameter& parameter : row.parameters) {
    if (name == parameter.name) return parameter;
    known += (known.empty() ? "" : ", ") + std::string(parameter.name);
  }
  fail(Code::usage, "cache: %s has no parameter \"%s\"; it has %s", row.name, name.c_str(),
       known.empty() ? "none" : known.c_str());
}

double checked_value(const PolicyRow& row, const PolicyParameter& parameter, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool number = end != text.c_str() && *end == '\0' && std::isfinite(value);
  if (!number || value < parameter.low || value > parameter.high || (parameter.whole && value != std::floor(value))) {
    fail(Code::usage, "cache: %s %s = \"%s\" is not allowed, give %s from %g to %g, for example %g", row.name,
         parameter.name, text.c_str(), parameter.whole ? "a whole number" : "a number", parameter.low, parameter.high,
         parameter.fallback);
  }
  return value;
}

std::vector<std::string> split(const std::string& text, const char* separators) {
  std::vector<std::string> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find_first_of(separators, at), text.size());
    out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

}  // namespace

const char* name_of(StepAction action) {
  switch (action) {
    case StepAction::run: return "run";
    case StepAction::reuse: return "reuse";
    case StepAction::forecast: return "forecast";
  }
  return "run";
}

L1Ratio::L1Ratio(Ops& ops) : ops_(ops), sums_(ops.device(), DType::f32, {2}, "policy metric") {}

double L1Ratio::operator()(const View& a, const View& b) {
  ops_.l1_pair(a, b, sums_);
  ops_.sync();
  float sums[2];
  ops_.device().download(sums_, sums);
  return static_cast<double>(sums[0] / std::max(sums[1], 1e-8f));
}

CoefficientTable::CoefficientTable(Device& device, const std::vector<float>& pairs)
    : table_(upload_f32(device, pairs.data(), {static_cast<int64_t>(pairs.size() / 2), 2}, DType::f32,
                        "policy coefficients")) {}

std::unique_ptr<StepPolicy> make_none(Ops&, const PolicySpec&, const PolicyShape&, const Schedule&) {
  return std::make_unique<None>();
}

std::span<const PolicyRow> policies() { return kPolicies; }

const PolicyRow& policy_row(const std::string& mode) {
  for (const PolicyRow& row : kPolicies) {
    if (mode == row.name) return row;
  }
  fail(Code::usage, "cache: \"%s\" is not known, give one of %s", mode.c_str(), listed_modes().c_str());
}

PolicySpec parse_policy(const std::string& text) {
  const std::vector<std::string> words = split(text, ",");
  const size_t colon = words[0].find(':');
  PolicySpec spec;
  spec.mode = words[0].substr(0, colon);
  const PolicyRow& row = policy_row(spec.mode);
  for (const PolicyParameter& parameter : row.parameters) spec.parameters[parameter.name] = parameter.fallback;
  if (colon != std::string::npos) {
    if (*row.threshold == '\0') {
      fail(Code::usage, "cache: %s takes no value behind a colon, drop \"%s\"", row.name,
           words[0].substr(colon).c_str());
    }
    spec.parameters[row.threshold] = checked_value(row, parameter_of(row, row.threshold), words[0].substr(colon + 1));
  }
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    if (equals == std::string::npos) {
      fail(Code::usage, "cache: \"%s\" is not NAME=VALUE, for example first-block:0.08,warmup=3", words[i].c_str());
    }
    const PolicyParameter& parameter = parameter_of(row, words[i].substr(0, equals));
    spec.parameters[parameter.name] = checked_value(row, parameter, words[i].substr(equals + 1));
  }
  return spec;
}

std::string policy_text(const PolicySpec& spec) {
  std::string text = spec.mode;
  for (const PolicyParameter& parameter : policy_row(spec.mode).parameters) {
    text += strf(",%s=%.9g", parameter.name, spec.parameters.at(parameter.name));
  }
  return text;
}

std::vector<StepAction> parse_trace(const std::string& text) {
  std::vector<StepAction> trace;
  for (std::string line : split(text, "\n")) {
    line = line.substr(0, line.find('#'));
    for (const std::string& word : split(line, " ,\t\r")) {
      if (word.empty()) continue;
      const auto found = std::find_if(std::begin(kActions), std::end(kActions),
                                      [&](StepAction action) { return word == name_of(action); });
      if (found == std::end(kActions)) {
        fail(Code::usage, "policy_trace: \"%s\" is not known, give run, reuse or forecast per evaluation",
             word.c_str());
      }
      trace.push_back(*found);
    }
  }
  return trace;
}

std::string trace_text(std::span<const StepAction> trace) {
  std::string text;
  for (const StepAction action : trace) text += (text.empty() ? "" : " ") + std::string(name_of(action));
  return text;
}

std::unique_ptr<StepPolicy> make_policy(Ops& ops, const PolicySpec& spec, const PolicyShape& shape,
                                        const Schedule& schedule) {
  const PolicyRow& row = policy_row(spec.mode);
  const std::vector<StepAction>& trace = spec.trace;
  if (!trace.empty()) {
    if (static_cast<int>(trace.size()) != shape.evaluations) {
      fail(Code::usage, "policy_trace: it has %zu decisions, the run has %d evaluations", trace.size(),
           shape.evaluations);
    }
    if (trace[0] != StepAction::run) fail(Code::usage, "policy_trace: the first evaluation must be run");
    for (const StepAction action : trace) {
      if (action != StepAction::run && action != row.saves) {
        fail(Code::usage, "policy_trace: %s is not something that the cache %s does", name_of(action), row.name);
      }
    }
  }
  // With one or two evaluations there is nothing to save.
  if (shape.evaluations <= 2 && trace.empty()) return std::make_unique<None>();
  return row.make(ops, spec, shape, schedule);
}

}  // namespace h3
