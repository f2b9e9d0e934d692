// The numbers of a stored tensor.
#pragma once

#include <vector>

#include "store/tensor_source.h"

namespace h3 {

// Every element as f32, in the order of the dims; exact for formats up to f32. Empty when a dim is 0. Error(data) that
// names the tensor when its planes do not fit its dims.
std::vector<float> values_of(const TensorInfo& info);

}  // namespace h3
