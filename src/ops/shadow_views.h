// Operands of the error bounds of the shadow decorator.
#pragma once

#include <cmath>
#include <vector>

#include "codec/float8_row.h"
#include "codec/int8_convrot.h"
#include "codec/nvfp4_row.h"
#include "tensor/rows.h"
#include "tensor/tensor.h"

namespace h3 {

// |x| in the same type, contiguous.
inline Tensor absolute(Device& device, const View& x) {
  Tensor out(device, x.type, std::vector<int64_t>(x.dim.begin(), x.dim.begin() + x.rank), "shadow magnitude");
  const int64_t n = rows::row_length(x);
  std::vector<double> row(static_cast<size_t>(n));
  for (int64_t i = 0; i < rows::row_count(x); ++i) {
    rows::load_row(x, i, 0, n, row.data());
    for (double& e : row) e = std::fabs(e);
    rows::store_row(out.view, i, 0, n, row.data());
  }
  return out;
}

inline Tensor f64_like(Device& device, const View& y) {
  return Tensor(device, DType::f64, std::vector<int64_t>(y.dim.begin(), y.dim.begin() + y.rank), "shadow magnitude");
}

// x as its rows are multiplied where they become e4m3 or nvfp4, contiguous. `round`: of one row.
inline Tensor rounded_rows(Device& device, const View& x, void (*round)(double*, int64_t)) {
  Tensor out = f64_like(device, x);
  for (int64_t i = 0; i < x.dim[0]; ++i) {
    double* const row = host<double>(out.view) + i * x.dim[1];
    rows::load_row(x, i, 0, x.dim[1], row);
    round(row, x.dim[1]);
  }
  return out;
}

// x as its rows are multiplied where they are rotated and become int8, contiguous.
inline Tensor int8_rotated(Device& device, const View& x, int64_t group) {
  Tensor out = f64_like(device, x);
  const int64_t n = x.dim[1];
  std::vector<float> row(static_cast<size_t>(n));
  for (int64_t i = 0; i < x.dim[0]; ++i) {
    rows::load_row(x, i, 0, n, row.data());
    const double scale = static_cast<double>(int8_convrot_row(row.data(), n, group));
    double* const to = host<double>(out.view) + i * n;
    for (int64_t k = 0; k < n; ++k) to[k] = static_cast<double>(row[k]) * scale;
  }
  return out;
}

}  // namespace h3
