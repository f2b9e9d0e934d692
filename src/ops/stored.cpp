#include "ops/stored.h"

#include <algorithm>

namespace h3 {

bool kept_as_stored(const MatrixSource& weight, Compute compute) {
  constexpr double kOperandBits = 16;
  if (compute == Compute::packed) return weight.format() != Format::noise;
  if (compute != Compute::bf16 && compute != Compute::f16) return false;
  return std::all_of(weight.parts.begin(), weight.parts.end(), [](const MatrixSource::Part& part) {
    return row_of(part.matrix.format).bits_per_weight < kOperandBits;
  });
}

}  // namespace h3
