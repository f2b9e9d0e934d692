// AdaLN as a curve over time (spec dit 9): every projection sees silu(time embedding) only, a curve that a few
// coordinates describe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "model/dit/export.h"
#include "model/lora/adapter.h"
#include "ops/ops.h"

namespace h3 {

inline constexpr int64_t kCurvePoints = 1025, kCurveRank = 8;

// silu(temb(t)) at t = g / (points - 1), f32. [points, time_dim]
std::vector<float> silu_grid(Ops& ops, const dit::Source& source, int64_t points);

struct TimeCurve {
  int64_t points = 0, rank = 0, width = 0;
  std::vector<float> mean;       // [width]
  std::vector<float> basis;      // [rank, width], orthonormal rows
  std::vector<float> table;      // [points, rank]
  std::vector<double> spectrum;  // singular values of the centred curve, falling
};

bool curve_fit_available();  // the build has Eigen

// The centred singular value decomposition in f64, rounded to f32. Error(usage) in a build without Eigen.
TimeCurve fit_time_curve(const std::vector<float>& silu, int64_t points, int64_t rank);

// The projection behind the curve: W' = W basis^T, bias' = bias + W mean; accumulated in f64.
dit::ExportAdaln behind_curve(const dit::AdalnSource& full, const lora::SiteMerge& merge, const TimeCurve& curve,
                              ThreadPool& pool);

// What the time-side branches of adapters become a part of.
struct BranchTarget {
  const std::vector<float>* silu = nullptr;  // [points, time_dim] of the curve's own grid; null: a pruned base, where
                                             // each adapter brings the grid it needs
  int64_t width = 0;                         // columns to make, at least branched_width(); the rest are zero
};

// Columns of a projection of `own` columns with its branches beside them.
int64_t branched_width(int64_t own, const std::vector<lora::Use>& uses, const lora::Site& site,
                       const BranchTarget& target);

// The projection behind a curve with the branches of a site in it (spec dit 9): weight [W | scale B], table
// [u(t) | A silu(t)]. Branches of a pruned base that read the curve itself are merged into W. Error(data) naming the
// tensor for a branch that reads the time embedding where nothing says what that is.
dit::ExportAdaln with_branches(const dit::ExportAdaln& base, const std::vector<lora::Use>& uses, const lora::Site& site,
                               const BranchTarget& target);

// How far modulation by the curve lies from that by the projection, over the whole grid and every `stride`-th row.
struct CurveError {
  double max_abs = 0, rms = 0, signal = 0;  // signal: rms of the modulation itself
};
CurveError curve_error(const dit::AdalnSource& full, const lora::SiteMerge& merge, const dit::ExportAdaln& curved,
                       const std::vector<float>& silu, int64_t stride, ThreadPool& pool);

}  // namespace h3
