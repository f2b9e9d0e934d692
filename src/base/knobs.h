// The environment. The only place of the program that reads it.
#pragma once

#include <string>
#include <string_view>

namespace h3 {

// Value of the environment variable H3_<name>, empty when unset. name is upper case: "ISA" reads H3_ISA.
std::string env_knob(std::string_view name);

// Where results that are slow to make and cheap to make again may be kept: H3_CACHE_DIR, else h3 below
// $XDG_CACHE_HOME or ~/.cache. Empty when none of these is set. The folder may not exist yet.
std::string cache_folder();

}  // namespace h3
