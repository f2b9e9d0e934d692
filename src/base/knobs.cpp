#include "base/knobs.h"

#include <cstdlib>

namespace h3 {

std::string env_knob(std::string_view name) {
  const std::string key = "H3_" + std::string(name);
  const char* value = std::getenv(key.c_str());
  return value == nullptr ? std::string() : std::string(value);
}

std::string cache_folder() {
  const std::string own = env_knob("CACHE_DIR");
  if (!own.empty()) return own;
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/h3";
  const char* const home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache/h3" : std::string();
}

}  // namespace h3
