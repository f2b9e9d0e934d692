// Weights in e4m3 times activations quantised to e4m3 row by row: the codes meet on the tensor cores as they are
// stored, and both scales follow.
#include <algorithm>

#include "backends/cuda/linear_plans.h"
#include "base/error.h"
#include "codec/packed.h"

namespace h3::cuda {
namespace {

constexpr int64_t kBlock = 16;  // the library wants depths, outputs and pitches in multiples of it

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Results of any other type or pitch, and biases, go through f32.
bool scales_in_matmul(const CudaLinear& weight, const View& y) {
  const auto address = reinterpret_cast<uintptr_t>(y.data) | static_cast<uintptr_t>(y.stride[0] * size_of(y.type));
  return weight.bias_f32.data() == nullptr && y.type == DType::bf16 && address % kBlock == 0;
}

}  // namespace

bool LinearPlans::fits_float8(const CudaLinear& weight) const {
  if (!float8_ || weight.compute != Compute::packed || weight.in % kBlock != 0) return false;
  return std::all_of(weight.packed.begin(), weight.packed.end(), [](const PackedSegment& s) {
    return s.format == Format::f8_e4m3 && s.planes[4] < 0 && s.rows.rows % kBlock == 0;
  });
}

// One scale per output, whether the file has one per row, one per tensor or none.
void LinearPlans::upload_float8_scales(CudaLinear& weight, const MatrixSource& source) {
  std::vector<float> scales;
  for (const MatrixSource::Part& part : source.parts) {
    const PackedRows m = packed_rows(part.matrix);
    for (int64_t r = part.first; r < part.first + part.rows; ++r) {
      scales.push_back(m.scale == nullptr ? 1.0f : load_f32(m.scale + (m.row_scales ? 4 * r : 0)));
    }
  }
  weight.scales = ops_.device_.allocate(weight.out * 4, weight.label.c_str());
  ops_.device_.upload(scales.data(), make_view(ops_.device_, weight.scales.data(), DType::f32, {weight.out}));
}

int64_t LinearPlans::float8_row_bytes(const CudaLinear& weight, const View& y) const {
  return weight.in + 4 + (row_scales_ && scales_in_matmul(weight, y) ? 0 : 4 * weight.out);
}

void LinearPlans::run_float8(const CudaLinear& weight, const View& x, const View& y) {
  const int64_t rows = x.dim[0], q_bytes = aligned(rows * weight.in), scale_bytes = aligned(rows * 4);
  const bool fused = row_scales_ && scales_in_matmul(weight, y);
  // One allocation serves the quantised rows, their scales and the sums.
  auto* base = static_cast<std::byte*>(ops_.scratch(0, q_bytes + scale_bytes + (fused ? 0 : rows * weight.out * 4)));
  auto* q = reinterpret_cast<uint8_t*>(base);
  auto* row_scale = reinterpret_cast<float*>(base + q_bytes);
  auto* sums = reinterpret_cast<float*>(base + q_bytes + scale_bytes);
  const auto* column_scale = static_cast<const float*>(weight.scales.data());
  quantise_float8_rows(ops_.stream(), x, q, row_scale);
  std::byte* target = fused ? y.data : reinterpret_cast<std::byte*>(sums);
  const DType out = fused ? y.type : DType::f32;
  for (const PackedSegment& segment : weight.packed) {
    const auto* stored = static_cast<const std::byte*>(segment.bytes.data());
    if (weight.group != nullptr) stored = weight.group->base();
    matmul(weight, {.w = stored + segment.planes[0],
                    .x = q,
                    .y = target + segment.first * size_of(out),
                    .rows = rows,
                    .outs = segment.rows.rows,
                    .ldx = weight.in,
                    .ldy = fused ? y.stride[0] : weight.out,
                    .operand = DType::u8,
                    .out = out,
                    .w_scale = fused ? column_scale + segment.first : nullptr,
                    .x_scale = fused ? row_scale : nullptr});
  }
  if (!fused) {
    scale_rows(ops_.stream(), sums, weight.out, row_scale, column_scale,
               static_cast<const float*>(weight.bias_f32.data()), y);
  }
}

}  // namespace h3::cuda
