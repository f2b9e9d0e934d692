#include "base/knobs.h"

#include <cstdlib>

namespace h3 {

std::string env_knob(std::string_view name) {
  const std::string key = "H3_" + std::string(name);
  const char* value = std::getenv(key.c_str());
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace h3
