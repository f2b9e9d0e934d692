#include "pipeline/report.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstdlib>

#include "base/error.h"

namespace h3 {
namespace {

constexpr int kRecipeVersion = 1;

std::string hex64(uint64_t value) { return strf("%016llx", static_cast<unsigned long long>(value)); }

uint64_t parse_hex64(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const unsigned long long value = std::strtoull(text.c_str(), &end, 16);
  if (text.size() != 16 || *end != '\0' || errno != 0) fail(Code::data, "\"%s\" is not a hash", text.c_str());
  return value;
}

Json list(const std::vector<std::string>& items) {
  Json array = Json::array();
  for (const std::string& item : items) array.push(item);
  return array;
}

// The request without what only says where results go and what inputs are called: the same clip of the same files has
// the same bytes, whatever its name and theirs.
Request without_names(Request request) {
  request.output.clear();
  request.wav.clear();
  request.frames_dir.clear();
  request.dumps.clear();
  for (Reference& reference : request.references) {
    reference.name.clear();
    reference.sound_name.clear();
  }
  return request;
}

}  // namespace

#ifndef H3_VERSION
#define H3_VERSION "development"
#endif
const char* engine_version() { return H3_VERSION; }

Json Recipe::to_json() const {
  Json json = Json::object({{"h3", engine_version()}, {"recipe", kRecipeVersion}});
  json.set("request", without_names(request).to_json());
  Json files = Json::array();
  for (const InputFile& input : inputs) {
    files.push(Json::object({{"field", input.field}, {"path", input.path}, {"hash", hex64(input.hash)}}));
  }
  if (!inputs.empty()) json.set("inputs", std::move(files));
  json.set("models", list(models));
  if (!tokenizer.empty()) json.set("tokenizer", tokenizer);
  if (!partition.empty()) json.set("partition", partition);
  if (!qkv_order.empty()) json.set("qkv_order", qkv_order);
  Json ids = Json::array();
  for (const ModelId& model : model_ids) {
    ids.push(Json::object({{"role", model.role}, {"id", model.id}, {"origin", model.origin}}));
  }
  json.set("model_ids", std::move(ids));
  if (tap > 0) json.set("te_layers", tap);
  if (synthetic_layers > 0) json.set("synthetic_layers", synthetic_layers);
  if (!synthetic_format.empty()) json.set("synthetic_format", synthetic_format);
  if (lora_partial) json.set("lora_partial", true);
  if (!acceleration.is_null()) json.set("acceleration", acceleration);
  return json.set("device", device);
}

Recipe Recipe::parse(const std::string& text, const std::string& what) {
  try {
    const Json json = Json::parse(text, what);
    if (json.find("recipe") == nullptr) fail(Code::data, "it was not written by h3");
    if (json.at("recipe").as_int() != kRecipeVersion) {
      fail(Code::data, "its recipe has version %lld, this program reads %d",
           static_cast<long long>(json.at("recipe").as_int()), kRecipeVersion);
    }
    Recipe recipe;
    recipe.request = Request::from_json(json.at("request"));
    if (const Json* inputs = json.find("inputs")) {
      for (const Json& input : inputs->items()) {
        recipe.inputs.push_back(
            {input.at("field").as_string(), input.at("path").as_string(), parse_hex64(input.at("hash").as_string())});
      }
    }
    for (const Json& path : json.at("models").items()) recipe.models.push_back(path.as_string());
    const auto optional = [&](const char* key, std::string& value) {
      if (const Json* found = json.find(key)) value = found->as_string();
    };
    optional("tokenizer", recipe.tokenizer);
    optional("partition", recipe.partition);
    optional("qkv_order", recipe.qkv_order);
    for (const Json& id : json.at("model_ids").items()) {
      recipe.model_ids.push_back({id.at("role").as_string(), id.at("id").as_string(), id.at("origin").as_string()});
    }
    if (const Json* tap = json.find("te_layers")) recipe.tap = static_cast<int>(tap->as_int());
    if (const Json* layers = json.find("synthetic_layers"))
      recipe.synthetic_layers = static_cast<int>(layers->as_int());
    optional("synthetic_format", recipe.synthetic_format);
    // What clips of earlier versions say.
    if (const Json* q4tp = json.find("synthetic_q4tp"); q4tp != nullptr && q4tp->as_bool()) {
      recipe.synthetic_format = "q4tp";
    }
    if (const Json* partial = json.find("lora_partial")) recipe.lora_partial = partial->as_bool();
    recipe.device = json.at("device").as_string();
    return recipe;
  } catch (const Error& error) {
    fail(Code::data, "%s: no usable settings inside: %s", what.c_str(), error.what());
  }
}

Json RunReport::to_json() const {
  Json json = Json::object({{"recipe", recipe.to_json()}, {"resolved", resolved}});
  json.set("files", list(files));
  json.set("notes", list(notes)).set("warnings", list(warnings));
  Json verdicts = Json::array();
  for (const Finding& finding : findings) verdicts.push(finding.to_json());
  json.set("watchdog", std::move(verdicts));
  Json times = Json::array();
  for (const StageTime& stage : stages) {
    times.push(Json::object({{"stage", stage.stage}, {"seconds", stage.seconds}, {"items", stage.items}}));
  }
  json.set("stages", std::move(times)).set("seconds", seconds);
  json.set("evaluations", Json::object({{"run", evaluations}, {"reused", reused}, {"forecast", forecast}}));
  json.set("acceleration", acceleration);
  json.set("text_rows", text_rows).set("sequence_rows", sequence_rows);
  json.set("peak_ram_bytes", peak_ram).set("peak_device_bytes", peak_device);
  if (!placement.phases.empty()) json.set("placement", placement.to_json());
  return json;
}

int64_t peak_resident_bytes() {
  struct rusage usage {};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
}

}  // namespace h3
