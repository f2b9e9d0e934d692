// h3 info and h3 devices.
#include <cstdio>

#include "apps/cli/command.h"
#include "base/error.h"
#include "pipeline/setup.h"

namespace h3 {
namespace {

// A clip of ours says how it was made; anything else is a model file.
bool print_recipe(const std::string& path, bool json) {
  const size_t dot = path.find_last_of('.');
  const std::string ending = dot == std::string::npos ? "" : path.substr(dot);
  for (const char* clip : {".mp4", ".avi", ".webm", ".y4m"}) {
    if (ending != clip) continue;
    const Recipe recipe = read_recipe(path);
    if (json) {
      std::printf("%s\n", recipe.to_json().dump(1).c_str());
      return true;
    }
    std::printf("%s: a clip of h3\n", path.c_str());
    const Json request = recipe.request.to_json();
    for (const auto& [key, value] : request.members()) {
      std::printf("  %-16s %s\n", key.c_str(), value.is_string() ? value.as_string().c_str() : value.dump().c_str());
    }
    for (const ModelId& model : recipe.model_ids) {
      std::printf("  %-16s %s (id %s)\n", model.role.c_str(), model.origin.c_str(), model.id.c_str());
    }
    return true;
  }
  return false;
}

}  // namespace

int run_info(Arguments& arguments) {
  SessionOptions options;
  options.models = arguments.positional;
  for (const std::string& path : arguments.all("model")) options.models.push_back(path);
  options.tokenizer = arguments.text("tokenizer");
  options.partition = arguments.text("partition");
  options.qkv_order = arguments.text("qkv-order");
  if (options.models.size() == 1 && print_recipe(options.models[0], arguments.on("json"))) return 0;
  std::fputs(describe_models(options, arguments.on("json")).c_str(), stdout);
  return 0;
}

int run_devices(Arguments& arguments) {
  Log log;
  const std::vector<DeviceInfo> devices = list_devices(log);
  if (arguments.on("json")) {
    Json list = Json::array();
    for (const DeviceInfo& device : devices) {
      list.push(Json::object({{"name", device.name},
                              {"detail", device.detail},
                              {"usable", device.refused.empty()},
                              {"refused", device.refused}}));
    }
    std::printf("%s\n", list.dump(1).c_str());
    return 0;
  }
  for (const DeviceInfo& device : devices) {
    std::printf("%-8s %s\n", device.name.c_str(), device.detail.c_str());
    if (!device.refused.empty()) std::printf("         not usable: %s\n", device.refused.c_str());
  }
  return 0;
}

}  // namespace h3
