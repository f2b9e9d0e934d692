// What a set of tensors is, by names and shapes only.
#pragma once

#include <string>
#include <vector>

#include "store/model_files.h"

namespace h3 {

struct Recognised {
  Role role = Role::unknown;
  Spelling spelling = Spelling::comfy;
  std::string prefix;       // in front of every name of this component
  std::string unsupported;  // why it cannot be run, empty when it can
};

// One entry per component found; one entry with Role::unknown when there is none.
std::vector<Recognised> recognise(const TensorSource& source);

}  // namespace h3
