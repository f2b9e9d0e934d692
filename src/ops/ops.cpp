#include "ops/ops.h"

namespace h3 {
namespace {

struct ComputeRow {
  Compute compute;
  const char* name;
};

constexpr ComputeRow kComputes[] = {{Compute::f32, "f32"},
                                    {Compute::bf16, "bf16"},
                                    {Compute::f16, "f16"},
                                    {Compute::int8, "int8"},
                                    {Compute::packed, "packed"}};

}  // namespace

const char* name_of(Compute compute) {
  for (const ComputeRow& row : kComputes) {
    if (row.compute == compute) return row.name;
  }
  return "?";
}

std::optional<Compute> compute_named(const std::string& name) {
  for (const ComputeRow& row : kComputes) {
    if (name == row.name) return row.compute;
  }
  return std::nullopt;
}

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

int64_t Ops::linear_bytes(const MatrixSource& weight, Compute compute) const {
  const int64_t values = weight.rows * weight.cols;
  switch (compute) {
    case Compute::f32: return 4 * values;
    case Compute::int8: return values + 4 * weight.rows;
    case Compute::packed: return weight.format() == Format::noise ? 2 * values : weight.stored_bytes();
    case Compute::bf16:
    case Compute::f16: break;
  }
  return 2 * values;
}

void Ops::linear_scaled(const Linear& weight, float scale, const View& x, const View& y) {
  fill(y, 0);
  linear_add(weight, scale, x, y);
}

std::string Ops::refuses_eight_bit(int64_t head_dim) const {
  return (void)head_dim, std::string(name()) + " has no kernel for it";
}

void Ops::gate_norm(const View& x, const View& y, const Gate& gate, const View& w, float eps, const Modulation& mod,
                    const View& h) {
  gated_add(x, y, gate);
  norm_modulate(x, w, eps, mod, h);
}

void Ops::linear_swiglu(const Linear& weight, const View& x, const View& wide, const View& out) {
  const int64_t half = wide.dim[1] / 2;
  linear(weight, x, wide);
  swiglu(wide.slice(1, 0, half), wide.slice(1, half, half), out);
}

void Ops::linear_scaled_add(const Linear& weight, const View& h, const View& y, const View& scale, const View& x) {
  linear(weight, h, y);
  scaled_add(x, y, scale);
}

void Ops::linear_head_norm_rope(const Linear& weight, const View& x, int64_t heads, int64_t d, const HeadNorm& norm,
                                const Rope& rope, const View& y) {
  linear(weight, x, y);
  head_norm_rope(y.slice(1, 0, heads * d).split(1, d), norm, rope);
}

}  // namespace h3
