// The environment. The only place of the program that reads it.
#pragma once

#include <string>
#include <string_view>

namespace h3 {

// Value of the environment variable H3_<name>, empty when unset. name is upper case: "ISA" reads H3_ISA.
std::string env_knob(std::string_view name);

}  // namespace h3
