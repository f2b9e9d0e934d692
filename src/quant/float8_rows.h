// Weights rounded to e4m3 at load, for matmuls of eight-bit floats.
#pragma once

#include "base/thread_pool.h"
#include "quant/matrix.h"

namespace h3 {

// The rows in order as one matrix in e4m3 with a scale per row (codec/float8_row.h). A source that is in e4m3 already
// is returned as it is. `values` false: its shape alone, for plans.
MatrixSource float8_rows(MatrixSource source, ThreadPool& pool, bool values = true);

}  // namespace h3
