#include "apps/pack/time_curve.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/dit/adaln.h"

#if H3_HAVE_EIGEN
#include <Eigen/SVD>
#endif

namespace h3 {
namespace {

constexpr int64_t kRows = 1024;  // of a projection, read at a time

// Calls use(row, weights) for every `stride`-th row of the projection with its adapters merged.
template <typename Use>
void for_rows(const dit::AdalnSource& full, const lora::SiteMerge& merge, int64_t stride, ThreadPool& pool, Use use) {
  const int64_t cols = full.weight.cols;
  std::vector<float> rows(static_cast<size_t>(std::min(kRows, full.weight.rows) * cols));
  for (int64_t first = 0; first < full.weight.rows; first += kRows) {
    const int64_t count = std::min(kRows, full.weight.rows - first);
    full.weight.decode_rows(first, count, rows.data());
    if (!merge.empty()) merge.add(first, count, rows.data());
    pool.parallel((count + stride - 1) / stride, [&](int64_t i) {
      const int64_t r = i * stride;
      use(first + r, rows.data() + r * cols);
    });
  }
}

double dot(const float* a, const float* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

}  // namespace

std::vector<float> silu_grid(Ops& ops, const dit::Source& source, int64_t points) {
  std::vector<float> times;
  for (int64_t g = 0; g < points; ++g) times.push_back(static_cast<float>(g) / static_cast<float>(points - 1));
  const Tensor embedded = dit::embed_times(ops, source, times);
  ops.silu(embedded, embedded);
  ops.sync();
  return download_f32(embedded);
}

#if H3_HAVE_EIGEN
bool curve_fit_available() { return true; }

TimeCurve fit_time_curve(const std::vector<float>& silu, int64_t points, int64_t rank) {
  TimeCurve curve;
  curve.points = points;
  curve.width = static_cast<int64_t>(silu.size()) / points;
  curve.rank = std::min(rank, std::min(points, curve.width));
  Eigen::MatrixXd centred(points, curve.width);
  for (int64_t g = 0; g < points; ++g) {
    for (int64_t c = 0; c < curve.width; ++c) centred(g, c) = static_cast<double>(silu[g * curve.width + c]);
  }
  const Eigen::RowVectorXd mean = centred.colwise().mean();
  centred.rowwise() -= mean;
  const Eigen::BDCSVD<Eigen::MatrixXd> svd(centred, Eigen::ComputeThinU | Eigen::ComputeThinV);
  for (int64_t c = 0; c < curve.width; ++c) curve.mean.push_back(static_cast<float>(mean(c)));
  for (int64_t r = 0; r < curve.rank; ++r) {
    for (int64_t c = 0; c < curve.width; ++c) curve.basis.push_back(static_cast<float>(svd.matrixV()(c, r)));
  }
  for (int64_t g = 0; g < points; ++g) {
    for (int64_t r = 0; r < curve.rank; ++r) {
      curve.table.push_back(static_cast<float>(svd.matrixU()(g, r) * svd.singularValues()(r)));
    }
  }
  curve.spectrum.assign(svd.singularValues().begin(), svd.singularValues().end());
  return curve;
}
#else
bool curve_fit_available() { return false; }

TimeCurve fit_time_curve(const std::vector<float>&, int64_t, int64_t) {
  fail(Code::usage,
       "pack: this build cannot make AdaLN curves; install libeigen3-dev and build again, or use --adaln full");
}
#endif

dit::ExportAdaln behind_curve(const dit::AdalnSource& full, const lora::SiteMerge& merge, const TimeCurve& curve,
                              ThreadPool& pool) {
  dit::ExportAdaln out;
  std::vector<float> weight(static_cast<size_t>(full.weight.rows * curve.rank));
  out.bias = full.bias;
  for_rows(full, merge, 1, pool, [&](int64_t row, const float* weights) {
    for (int64_t r = 0; r < curve.rank; ++r) {
      weight[row * curve.rank + r] = static_cast<float>(dot(weights, &curve.basis[r * curve.width], curve.width));
    }
    out.bias[row] =
        static_cast<float>(static_cast<double>(full.bias[row]) + dot(weights, curve.mean.data(), curve.width));
  });
  out.weight = owned_rows("adaln", std::move(weight), full.weight.rows);
  out.table = curve.table;
  return out;
}

dit::ExportAdaln with_branches(const dit::AdalnSource& pruned, const std::vector<float>& curve,
                               const std::vector<lora::Use>& uses, const lora::Site& site) {
  struct Part {
    int64_t rank;
    std::vector<float> up, coordinates;  // [rows, rank], [points, rank]
  };
  std::vector<Part> parts;
  const int64_t rows = pruned.weight.rows, own = pruned.weight.cols;
  const int64_t points = static_cast<int64_t>(curve.size()) / own;
  int64_t width = own;
  for (const lora::Use& use : uses) {
    for (const lora::Branch& branch : use.adapter->branches(site)) {
      const std::vector<float>& grid = use.adapter->silu_grid();
      if (use.adapter->silu_points() != points || branch.up.rows != rows || branch.first_row != 0) {
        fail(Code::usage,
             "%s changes the time projections of the full model; on a pruned one the file "
             "h3_silu_temb_grid.safetensors with %lld points must lie beside it",
             use.adapter->file().path.c_str(), static_cast<long long>(points));
      }
      Part part;
      part.rank = branch.rank();
      part.up.resize(static_cast<size_t>(rows * part.rank));
      branch.up.decode_rows(0, rows, part.up.data());
      const float scale = use.strength * branch.scale;
      for (float& value : part.up) value *= scale;
      std::vector<float> down(static_cast<size_t>(branch.down.cols));
      part.coordinates.resize(static_cast<size_t>(points * part.rank));
      for (int64_t r = 0; r < part.rank; ++r) {
        row_of(branch.down.format).decode_row(branch.down, r, down.data());
        for (int64_t g = 0; g < points; ++g) {
          part.coordinates[g * part.rank + r] =
              static_cast<float>(dot(down.data(), &grid[g * branch.down.cols], branch.down.cols));
        }
      }
      width += part.rank;
      parts.push_back(std::move(part));
    }
  }
  dit::ExportAdaln out;
  out.bias = pruned.bias;
  std::vector<float> weight(static_cast<size_t>(rows * width));
  out.table.resize(static_cast<size_t>(points * width));
  std::vector<float> row(static_cast<size_t>(own));
  const auto join = [&](float* to, const float* first, const auto& rest, int64_t index) {
    to = std::copy(first, first + own, to);
    for (const Part& part : parts) to = std::copy_n((part.*rest).begin() + index * part.rank, part.rank, to);
  };
  for (int64_t r = 0; r < rows; ++r) {
    pruned.weight.decode_rows(r, 1, row.data());
    join(&weight[r * width], row.data(), &Part::up, r);
  }
  for (int64_t g = 0; g < points; ++g) join(&out.table[g * width], &curve[g * own], &Part::coordinates, g);
  out.weight = owned_rows("adaln", std::move(weight), rows);
  return out;
}

CurveError curve_error(const dit::AdalnSource& full, const lora::SiteMerge& merge, const dit::ExportAdaln& curved,
                       const std::vector<float>& silu, const TimeCurve& curve, int64_t stride, ThreadPool& pool) {
  std::vector<CurveError> by_row(static_cast<size_t>(full.weight.rows));
  for_rows(full, merge, stride, pool, [&](int64_t row, const float* weights) {
    std::vector<float> small(static_cast<size_t>(curve.rank));
    curved.weight.decode_rows(row, 1, small.data());
    CurveError& error = by_row[static_cast<size_t>(row)];
    for (int64_t g = 0; g < curve.points; ++g) {
      const double exact = dot(weights, &silu[g * curve.width], curve.width) + static_cast<double>(full.bias[row]);
      const double found =
          dot(small.data(), &curve.table[g * curve.rank], curve.rank) + static_cast<double>(curved.bias[row]);
      error.max_abs = std::max(error.max_abs, std::fabs(found - exact));
      error.rms += (found - exact) * (found - exact);
      error.signal += exact * exact;
    }
  });
  CurveError total;
  int64_t count = 0;
  for (size_t row = 0; row < by_row.size(); ++row) {
    if (by_row[row].signal == 0 && by_row[row].rms == 0) continue;  // not sampled
    total.max_abs = std::max(total.max_abs, by_row[row].max_abs);
    total.rms += by_row[row].rms;
    total.signal += by_row[row].signal;
    count += curve.points;
  }
  const double n = static_cast<double>(std::max<int64_t>(count, 1));
  total.rms = std::sqrt(total.rms / n);
  total.signal = std::sqrt(total.signal / n);
  return total;
}

}  // namespace h3
