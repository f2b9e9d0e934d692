// The softmax of attention between two tile products.
#pragma once

#include "backends/cpu/isa/kernels.h"

namespace h3::isa {

void softmax_tiles(const TileSoftmaxArgs& args);

}  // namespace h3::isa
