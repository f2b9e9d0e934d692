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

namespace {

// A pair of a pruned checkpoint, made for its curve instead of the time embedding.
bool reads_curve(const lora::Branch& branch, int64_t own, const BranchTarget& target) {
  return target.silu == nullptr && branch.down.cols == own;
}

struct TimeBranch {
  int64_t rank = 0;
  std::vector<float> up;           // [rows, rank], with the scale
  std::vector<float> down;         // [rank, width of what it reads]
  std::vector<float> coordinates;  // [points, rank]: A silu(t); empty: reads the curve
};

TimeBranch expanded(const lora::Use& use, const lora::Branch& branch) {
  TimeBranch out;
  out.rank = branch.rank();
  out.up.resize(static_cast<size_t>(branch.up.rows * out.rank));
  branch.up.decode_rows(0, branch.up.rows, out.up.data());
  for (float& value : out.up) value *= use.strength * branch.scale;
  out.down.resize(static_cast<size_t>(out.rank * branch.down.cols));
  for (int64_t r = 0; r < out.rank; ++r) {
    row_of(branch.down.format).decode_row(branch.down, r, &out.down[r * branch.down.cols]);
  }
  return out;
}

void read_grid(TimeBranch& part, const std::vector<float>& silu, int64_t points) {
  const int64_t width = static_cast<int64_t>(part.down.size()) / part.rank;
  part.coordinates.resize(static_cast<size_t>(points * part.rank));
  for (int64_t g = 0; g < points; ++g) {
    for (int64_t r = 0; r < part.rank; ++r) {
      part.coordinates[g * part.rank + r] = static_cast<float>(dot(&part.down[r * width], &silu[g * width], width));
    }
  }
}

[[noreturn]] void no_grid(const lora::Use& use, const lora::Branch& branch, int64_t points) {
  const TensorInfo* info = use.adapter->file().source->find(branch.up.name);
  fail(Code::data,
       "%s: tensor '%s' at offset %llu belongs to a pair that reads the %lld-wide time embedding, which a pruned "
       "transformer does not have; put h3_silu_temb_grid.safetensors with %lld points beside the adapter, or pack the "
       "full checkpoint",
       use.adapter->file().path.c_str(), branch.up.name.c_str(),
       static_cast<unsigned long long>(info == nullptr ? 0 : info->offset), static_cast<long long>(branch.down.cols),
       static_cast<long long>(points));
}

}  // namespace

int64_t branched_width(int64_t own, const std::vector<lora::Use>& uses, const lora::Site& site,
                       const BranchTarget& target) {
  int64_t width = own;
  for (const lora::Use& use : uses) {
    for (const lora::Branch& branch : use.adapter->branches(site)) {
      if (!reads_curve(branch, own, target)) width += branch.rank();
    }
  }
  return width;
}

dit::ExportAdaln with_branches(const dit::ExportAdaln& base, const std::vector<lora::Use>& uses, const lora::Site& site,
                               const BranchTarget& target) {
  const int64_t rows = base.weight.rows, own = base.weight.cols, width = target.width;
  const int64_t points = static_cast<int64_t>(base.table.size()) / own;
  H3_ASSERT(width >= branched_width(own, uses, site, target));
  std::vector<float> weight(static_cast<size_t>(rows * width)), table(static_cast<size_t>(points * width));
  for (int64_t r = 0; r < rows; ++r) base.weight.decode_rows(r, 1, &weight[r * width]);
  for (int64_t g = 0; g < points; ++g) std::copy_n(&base.table[g * own], own, &table[g * width]);
  int64_t at = own;
  for (const lora::Use& use : uses) {
    for (const lora::Branch& branch : use.adapter->branches(site)) {
      H3_ASSERT(branch.up.rows == rows && branch.first_row == 0);
      TimeBranch part = expanded(use, branch);
      if (reads_curve(branch, own, target)) {
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t k = 0; k < part.rank; ++k) {
            for (int64_t c = 0; c < own; ++c)
              weight[r * width + c] += part.up[r * part.rank + k] * part.down[k * own + c];
          }
        }
        continue;
      }
      const std::vector<float>& silu = target.silu != nullptr ? *target.silu : use.adapter->silu_grid();
      if (static_cast<int64_t>(silu.size()) != points * branch.down.cols) no_grid(use, branch, points);
      read_grid(part, silu, points);
      for (int64_t r = 0; r < rows; ++r) std::copy_n(&part.up[r * part.rank], part.rank, &weight[r * width + at]);
      for (int64_t g = 0; g < points; ++g)
        std::copy_n(&part.coordinates[g * part.rank], part.rank, &table[g * width + at]);
      at += part.rank;
    }
  }
  return {owned_rows("adaln", std::move(weight), rows), base.bias, std::move(table)};
}

CurveError curve_error(const dit::AdalnSource& full, const lora::SiteMerge& merge, const dit::ExportAdaln& curved,
                       const std::vector<float>& silu, int64_t stride, ThreadPool& pool) {
  const int64_t width = full.weight.cols, points = static_cast<int64_t>(silu.size()) / width;
  const int64_t rank = curved.weight.cols;
  std::vector<CurveError> by_row(static_cast<size_t>(full.weight.rows));
  for_rows(full, merge, stride, pool, [&](int64_t row, const float* weights) {
    std::vector<float> small(static_cast<size_t>(rank));
    curved.weight.decode_rows(row, 1, small.data());
    CurveError& error = by_row[static_cast<size_t>(row)];
    for (int64_t g = 0; g < points; ++g) {
      const double exact = dot(weights, &silu[g * width], width) + static_cast<double>(full.bias[row]);
      const double found = dot(small.data(), &curved.table[g * rank], rank) + static_cast<double>(curved.bias[row]);
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
    count += points;
  }
  const double n = static_cast<double>(std::max<int64_t>(count, 1));
  total.rms = std::sqrt(total.rms / n);
  total.signal = std::sqrt(total.signal / n);
  return total;
}

}  // namespace h3
