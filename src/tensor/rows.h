// Host views read and written as whole rows (the last axis) of doubles, whatever their type and strides. For the oracle
// and the checks; no fast path goes through here.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "codec/scalar.h"
#include "tensor/tensor.h"

namespace h3::rows {

// A double as the f32 nearest toward zero with the last bit set when inexact ("round to odd"): a second rounding to a
// type of at most 22 bits then gives what one rounding of the double would have given.
static inline float to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (!(std::fabs(value) <= 1e300) || static_cast<double>(nearest) == value) return nearest;  // NaN, Inf or exact
  uint32_t bits = f32_bits(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
  return f32_from_bits(bits | 1u);
}

// round_T of ops.h: one rounding, to nearest even.
static inline double round_to(DType type, double value) {
  switch (type) {
    case DType::f32: return static_cast<float>(value);
    case DType::bf16: return bf16_to_f32(f32_to_bf16(to_odd(value)));
    case DType::f16: return f16_to_f32(f32_to_f16(to_odd(value)));
    default: return value;
  }
}

inline int64_t row_length(const View& view) { return view.rank == 0 ? 1 : view.dim[view.rank - 1]; }

inline int64_t row_count(const View& view) {
  int64_t n = 1;
  for (int i = 0; i + 1 < view.rank; ++i) n *= view.dim[i];
  return n;
}

inline std::byte* row_address(const View& view, int64_t row) {
  int64_t offset = 0;
  for (int i = view.rank - 2; i >= 0; --i) {
    offset += row % view.dim[i] * view.stride[i];
    row /= view.dim[i];
  }
  return view.data + offset * size_of(view.type);
}

inline bool same_dims(const View& a, const View& b) {
  return a.rank == b.rank && std::equal(a.dim.begin(), a.dim.begin() + a.rank, b.dim.begin());
}

// Elements [begin, begin + count) of a row. Exact for every floating type.
void load_row(const View& view, int64_t row, int64_t begin, int64_t count, double* out);
void load_row(const View& view, int64_t row, int64_t begin, int64_t count, float* out);
std::vector<double> load_row(const View& view, int64_t row);  // the whole of it
// Rounds once to the type of the view.
void store_row(const View& view, int64_t row, int64_t begin, int64_t count, const double* values);

inline std::vector<double> load_vector(const View& view) {  // rank 1, or empty
  std::vector<double> values;
  if (view.empty()) return values;
  H3_ASSERT(view.rank == 1);
  values.resize(static_cast<size_t>(view.dim[0]));
  load_row(view, 0, 0, view.dim[0], values.data());
  return values;
}

}  // namespace h3::rows
