// Which weights an accelerator holds as they are stored.
#pragma once

#include "ops/ops.h"

namespace h3 {

// Those narrower than its operands: it expands rows of them for each matmul, because its memory is dearer than the
// time. The values are those of expanding at load.
bool kept_as_stored(const MatrixSource& weight, Compute compute);

}  // namespace h3
