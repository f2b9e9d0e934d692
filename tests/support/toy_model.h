// The toy model of the golden subset: every component in full precision, in the diffusers layout, untrained.
#pragma once

#include <string>

namespace h3::testing {

inline const std::string kToyModel = std::string(H3_SOURCE_DIR) + "/tests/data/golden/toy";

}  // namespace h3::testing
