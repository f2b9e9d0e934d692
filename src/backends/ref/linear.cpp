#include <utility>

#include "backends/ref/ref_ops.h"
#include "codec/int8_row.h"
#include "tensor/rows.h"

namespace h3 {
namespace {

constexpr int64_t kPanel = 8;     // outputs whose weights lie side by side, so that a plain loop over them vectorises
constexpr int64_t kRowBlock = 8;  // rows of x a task keeps decoded
constexpr int64_t kPanelBlock = 8;

struct RefLinear final : Linear {
  std::vector<float> panels;  // [ceil(out / 8)][in][8], operands as `compute` rounds them
  std::vector<float> scales;  // int8: [out]
  std::vector<float> bias;    // [out] or empty
};

float saturated_f16(float value) {
  const float limit = 65504.0f;
  if (value > limit) return limit;
  if (value < -limit) return -limit;
  return f16_to_f32(f32_to_f16(value));
}

// Rounds operands in place; int8 leaves the integers in `row` and returns their scale.
float round_operands(Compute compute, float* row, int64_t count) {
  switch (compute) {
    case Compute::f32:
    case Compute::packed: return 1;
    case Compute::bf16:
      for (int64_t i = 0; i < count; ++i) row[i] = bf16_to_f32(f32_to_bf16(row[i]));
      return 1;
    case Compute::f16:
      for (int64_t i = 0; i < count; ++i) row[i] = saturated_f16(row[i]);
      return 1;
    case Compute::int8: break;
  }
  const float absmax = absmax_of(row, count), inverse = int8_row_inverse(absmax);
  for (int64_t i = 0; i < count; ++i) row[i] = int8_row_quantise(row[i], inverse);
  return int8_row_scale(absmax);
}

const char* kernel_name(Compute compute) {
  switch (compute) {
    case Compute::f32: return "f32_ref";
    case Compute::bf16: return "bf16_ref";
    case Compute::f16: return "f16_ref";
    case Compute::int8: return "int8_ref";
    case Compute::packed: return "decode_ref";
  }
  return "?";
}

// sums[j] = x . w[j] for the 8 outputs of a panel, each accumulated in the order of k.
void dot_panel(const double* x, const float* panel, int64_t in, double* sums) {
  double acc[kPanel] = {};
  for (int64_t k = 0; k < in; ++k) {
    for (int64_t j = 0; j < kPanel; ++j) acc[j] += x[k] * static_cast<double>(panel[k * kPanel + j]);
  }
  std::copy(acc, acc + kPanel, sums);
}

}  // namespace

std::unique_ptr<Linear> RefOps::make_linear(LinearSpec spec) {
  const int64_t in = spec.weight.cols, out = spec.weight.rows;
  H3_ASSERT(in > 0 && out > 0 && (spec.bias.empty() || static_cast<int64_t>(spec.bias.size()) == out));
  auto linear = std::make_unique<RefLinear>();
  linear->label = std::move(spec.label);
  linear->in = in;
  linear->out = out;
  linear->compute = spec.compute;
  linear->kernel = kernel_name(spec.compute);
  linear->bias = std::move(spec.bias);
  const int64_t panels = (out + kPanel - 1) / kPanel;
  linear->panels.resize(static_cast<size_t>(panels * in * kPanel));
  if (spec.compute == Compute::int8) linear->scales.resize(static_cast<size_t>(out));
  context_.pool.parallel(panels, [&](int64_t p) {
    const int64_t first = p * kPanel, count = std::min(kPanel, out - first);
    std::vector<float> rows(static_cast<size_t>(count * in));
    spec.weight.decode_rows(first, count, rows.data());
    float* panel = &linear->panels[p * in * kPanel];
    for (int64_t j = 0; j < count; ++j) {
      const float scale = round_operands(spec.compute, &rows[j * in], in);
      if (!linear->scales.empty()) linear->scales[first + j] = scale;
      for (int64_t k = 0; k < in; ++k) panel[k * kPanel + j] = rows[j * in + k];
    }
  });
  linear->bytes = static_cast<int64_t>((linear->panels.size() + linear->scales.size() + linear->bias.size()) * 4);
  return linear;
}

namespace {

// emit(row, first output, count, sums) for every panel of every row of x W^T + b.
template <typename Emit>
void each_product(ThreadPool& pool, const RefLinear& w, const View& x, const View& y, const Emit& emit) {
  H3_ASSERT(x.rank == 2 && y.rank == 2 && x.dim[0] == y.dim[0] && x.dim[1] == w.in && y.dim[1] == w.out);
  const int64_t rows = x.dim[0], in = w.in, out = w.out;
  const int64_t panels = (out + kPanel - 1) / kPanel;
  const int64_t row_tasks = (rows + kRowBlock - 1) / kRowBlock, panel_tasks = (panels + kPanelBlock - 1) / kPanelBlock;
  pool.parallel(row_tasks * panel_tasks, [&](int64_t task) {
    const int64_t first = task / panel_tasks * kRowBlock, count = std::min(kRowBlock, rows - first);
    std::vector<float> row(static_cast<size_t>(in));
    std::vector<double> operands(static_cast<size_t>(count * in));
    float scale[kRowBlock];
    for (int64_t r = 0; r < count; ++r) {
      rows::load_row(x, first + r, 0, in, row.data());
      scale[r] = round_operands(w.compute, row.data(), in);
      std::copy(row.begin(), row.end(), operands.begin() + r * in);
    }
    const int64_t begin = task % panel_tasks * kPanelBlock, end = std::min(panels, begin + kPanelBlock);
    for (int64_t p = begin; p < end; ++p) {
      const int64_t o = p * kPanel, outputs = std::min(kPanel, out - o);
      for (int64_t r = 0; r < count; ++r) {
        double sums[kPanel];
        dot_panel(&operands[r * in], &w.panels[p * in * kPanel], in, sums);
        for (int64_t j = 0; j < outputs; ++j) {
          if (!w.scales.empty()) sums[j] *= static_cast<double>(scale[r]) * static_cast<double>(w.scales[o + j]);
          if (!w.bias.empty()) sums[j] += static_cast<double>(w.bias[o + j]);
        }
        emit(first + r, o, outputs, sums);
      }
    }
  });
}

}  // namespace

void RefOps::linear(const Linear& weight, const View& x, const View& y) {
  each_product(context_.pool, static_cast<const RefLinear&>(weight), x, y,
               [&](int64_t row, int64_t first, int64_t count, const double* sums) {
                 rows::store_row(y, row, first, count, sums);
               });
}

namespace {

void add_product(ThreadPool& pool, const RefLinear& weight, double scale, const View& x, const View& y) {
  each_product(pool, weight, x, y, [&](int64_t row, int64_t first, int64_t count, const double* sums) {
    double total[kPanel];
    rows::load_row(y, row, first, count, total);
    for (int64_t j = 0; j < count; ++j) total[j] += scale * sums[j];
    rows::store_row(y, row, first, count, total);
  });
}

}  // namespace

void RefOps::linear_add(const Linear& weight, float scale, const View& x, const View& y) {
  const RefLinear& w = static_cast<const RefLinear&>(weight);
  H3_ASSERT(x.type == y.type && w.bias.empty() && (w.compute == Compute::f32 || w.compute == Compute::bf16));
  add_product(context_.pool, w, static_cast<double>(scale), x, y);
}

void RefOps::linear_onto(const Linear& weight, const View& x, const View& y) {
  add_product(context_.pool, static_cast<const RefLinear&>(weight), 1, x, y);
}

}  // namespace h3
