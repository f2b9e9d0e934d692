#include "ops/ops.h"

namespace h3 {

void Conv::output_extent(const int64_t input[3], int64_t output[3]) const {
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t span = static_cast<int64_t>(spec.dilation[axis]) * (spec.kernel[axis] - 1) + 1;
    if (spec.kind == ConvKind::transposed1d) {
      output[axis] = (input[axis] - 1) * spec.stride[axis] + span - spec.pad_before[axis] - spec.pad_after[axis];
    } else {
      output[axis] = (input[axis] + spec.pad_before[axis] + spec.pad_after[axis] - span) / spec.stride[axis] + 1;
    }
  }
}

void Ops::gate_norm(const View& x, const View& y, const Gate& gate, const View& w, float eps, const Modulation& mod,
                    const View& h) {
  gated_add(x, y, gate);
  norm_modulate(x, w, eps, mod, h);
}

}  // namespace h3
