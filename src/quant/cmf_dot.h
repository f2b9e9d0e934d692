// Products of one activation row with q4tp and q2tp rows as the format's reference CPU kernels form them (spec formats
// A.9): the oracle for packed kernels. Bit equality is only defined for this one-row form.
#pragma once

#include <cstdint>
#include <vector>

#include "quant/matrix.h"

namespace h3 {

// A row as int8 with one scale; values beyond eight times the root mean square stay out and are multiplied in f32.
struct CmfActivation {
  std::vector<int8_t> q;          // 0 at the outliers
  std::vector<int64_t> outliers;  // ascending columns
  float scale = 1;
};
CmfActivation cmf_quantise(const std::vector<float>& x);

// y [rows] of a q4tp or q2tp matrix: with f32 activations, or with quantised ones (x gives the outliers' values).
std::vector<float> cmf_dot_f32(const StoredMatrix& matrix, const std::vector<float>& x);
std::vector<float> cmf_dot_int8(const StoredMatrix& matrix, const std::vector<float>& x);

}  // namespace h3
