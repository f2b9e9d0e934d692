// Packed weights straight into int8 tiles.
#pragma once

#include "backends/cpu/isa/kernels.h"

namespace h3::isa {

// Null: no such kernel for this format (quant/formats.h).
const TileExpander* tile_expander(const char* format);

}  // namespace h3::isa
