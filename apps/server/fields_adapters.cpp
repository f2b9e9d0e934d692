// Fields that choose adapters, as the programs people come from spell them.
#include "apps/server/fields.h"
#include "apps/server/http.h"

namespace h3::server {
namespace {

double strength_of(const Given& given, const Json& value) {
  if (!value.is_number()) refuse_value(given, "a strength such as 1 or 0.75");
  return value.as_double();
}

// {"name": "style", "scale": 0.8}, with the words of vLLM-Omni, stable-diffusion.cpp and others.
AdapterName from_object(const Given& given, const Json& item) {
  AdapterName adapter{given.name, "", 1};
  if (item.is_string()) {
    adapter.name = item.as_string();
  } else if (!item.is_object()) {
    refuse_value(given, "objects with name and scale");
  } else {
    for (const auto& [key, value] : item.members()) {
      if (value.is_null() || key == "int_id" || key == "is_high_noise") continue;  // of use to other servers only
      if (key == "scale" || key == "strength" || key == "multiplier" || key == "weight") {
        adapter.strength = strength_of(given, value);
      } else if (key == "name" || (key == "path" && adapter.name.empty())) {
        adapter.name = text_of({given.name, value, nullptr, false});
      } else if (key != "path") {
        refuse_unknown({given.name + "." + key, value, nullptr, false}, "unknown field of an adapter",
                       "name, path, scale");
      }
    }
  }
  if (adapter.name.empty()) refuse_value(given, "objects with name and scale");
  return adapter;
}

}  // namespace

void apply_turbo(Draft& draft, const Given& given) {
  std::string name = given.value.is_bool() ? (given.value.as_bool() ? "true" : "none") : text_of(given);
  if (given.text && name == "false") name = "none";
  if (name == "none" || name.empty()) return;
  draft.turbo = AdapterName{given.name, name == "true" ? "" : name, 1};
}

void apply_lora(Draft& draft, const Given& given) {
  if (is_nothing(given)) return;
  for (const Json& item : list_of(given)) draft.adapters.push_back(from_object(given, item));
}

void apply_lora_names(Draft& draft, const Given& given) {
  if (is_nothing(given)) return;
  for (const Json& item : list_of(given)) {
    draft.adapters.push_back({given.name, text_of({given.name, item, nullptr, false}), 1});
  }
}

void apply_lora_scales(Draft& draft, const Given& given) {
  if (is_nothing(given)) return;
  if (!given.value.is_array()) {
    draft.scales.push_back(number_of(given, "a strength such as 1 or 0.75"));
    return;
  }
  for (const Json& item : given.value.items()) draft.scales.push_back(strength_of(given, item));
}

void settle_adapters(Draft& draft) {
  if (draft.adapters.empty() || draft.scales.empty()) return;  // a strength of nothing is what some clients send
  if (draft.scales.size() != draft.adapters.size()) {
    const std::string& name = draft.adapters[0].field;
    throw ApiError{400,
                   "invalid_value",
                   strf("%s: %zu adapters but %zu strengths, give one for each", name.c_str(), draft.adapters.size(),
                        draft.scales.size()),
                   name,
                   std::to_string(draft.scales.size()),
                   std::to_string(draft.adapters.size()),
                   0};
  }
  for (size_t i = 0; i < draft.scales.size(); ++i) draft.adapters[i].strength = draft.scales[i];
}

}  // namespace h3::server
