// Weights in e4m3 times activations quantised to e4m3 row by row: the codes meet on the tensor cores as they are
// stored, and both scales follow.
#include <algorithm>
#include <utility>

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

// One scale per output, whether the file has one per row, one per tensor or none. Of nvfp4, that of the tensor.
void LinearPlans::upload_output_scales(CudaLinear& weight, const MatrixSource& source) {
  std::vector<float> scales;
  for (const MatrixSource::Part& part : source.parts) {
    PackedRows m = packed_rows(part.matrix);
    if (part.matrix.format == Format::nvfp4) m.scale = m.scale2, m.row_scales = false;
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

// `form`: of x, where an op left it.
void LinearPlans::run_float8(const CudaLinear& weight, const View& x, const View& y, bool onto, Float8Rows form) {
  const bool made = form.codes != nullptr, fused = row_scales_ && scales_in_matmul(weight, y);
  const int64_t rows = x.dim[0], q_bytes = made ? 0 : aligned(rows * weight.in);
  const int64_t form_bytes = made ? 0 : q_bytes + aligned(rows * 4);
  // One allocation serves the quantised rows, their scales and the sums.
  auto* base = static_cast<std::byte*>(ops_.scratch(kOperandScratch, form_bytes + (fused ? 0 : rows * weight.out * 4)));
  if (!made) {
    form.codes = reinterpret_cast<uint8_t*>(base), form.pitch = weight.in;
    form.scale = reinterpret_cast<float*>(base + q_bytes);
    quantise_float8_rows(ops_.stream(), x, form.codes, form.scale);
  }
  multiply_float8(weight, form, y, onto, fused ? nullptr : reinterpret_cast<float*>(base + form_bytes));
}

// `sums` [rows, out] where the library does not apply the scales.
void LinearPlans::multiply_float8(const CudaLinear& weight, const Float8Rows& x, const View& y, bool onto,
                                  float* sums) {
  const bool fused = sums == nullptr;
  const auto* column_scale = static_cast<const float*>(weight.scales.data());
  std::byte* target = fused ? y.data : reinterpret_cast<std::byte*>(sums);
  const DType out = fused ? y.type : DType::f32;
  for (const PackedSegment& segment : weight.packed) {
    const auto* stored = static_cast<const std::byte*>(segment.bytes.data());
    if (weight.group != nullptr) stored = weight.group->base();
    matmul(weight, {.w = stored + segment.planes[0],
                    .x = x.codes,
                    .y = target + segment.first * size_of(out),
                    .rows = y.dim[0],
                    .outs = segment.rows.rows,
                    .ldx = x.pitch,
                    .ldy = fused ? y.stride[0] : weight.out,
                    .operand = DType::u8,
                    .out = out,
                    .add = fused && onto,
                    .w_scale = fused ? column_scale + segment.first : nullptr,
                    .x_scale = fused ? x.scale : nullptr});
  }
  if (!fused) {
    scale_rows(ops_.stream(), sums, weight.out, x.scale, column_scale,
               static_cast<const float*>(weight.bias_f32.data()), y, onto);
  }
}

void LinearPlans::feeds(const CudaLinear& reader, bool alone) {
  hint_.reader = &reader;
  hint_.form.alone = alone && reader.witness == nullptr;  // whose plans are checked with the values
}

// Values and codes are both kept up to kFedBytes; alone, the codes lie where the values would.
Float8Rows LinearPlans::fed_rows(FedBy op, const View& rows, bool vectors) {
  Fed& fed = fed_[static_cast<int>(op)];
  fed = std::exchange(hint_, {});
  const CudaLinear* const reader = std::exchange(fed.reader, nullptr);
  if (reader == nullptr || !reader->float8_activations || !row_scales_ || reader->bias_f32.data() != nullptr) return {};
  if (!vectors || rows.rank != 2 || rows.dim[1] != reader->in || rows.type != DType::bf16) return {};
  const int64_t count = rows.dim[0], scale_bytes = aligned(count * 4), codes = count * reader->in;
  if (scale_bytes + (fed.form.alone ? 0 : codes) > kFedBytes) return {};
  auto* base = static_cast<std::byte*>(
      ops_.scratch(kFedScratch + static_cast<int>(op), scale_bytes + (fed.form.alone ? 0 : codes)));
  fed.form.scale = reinterpret_cast<float*>(base);
  fed.form.codes = reinterpret_cast<uint8_t*>(fed.form.alone ? rows.data : base + scale_bytes);
  fed.form.pitch = fed.form.alone ? rows.stride[0] * size_of(rows.type) : reader->in;
  fed.rows = rows;
  fed.reader = reader;
  return fed.form;
}

// The form of these rows, if an op left it for this weight.
Float8Rows LinearPlans::waiting_rows(const CudaLinear& weight, const View& x) {
  for (Fed& fed : fed_) {
    if (fed.reader != &weight || x.stride[0] != fed.rows.stride[0] || x.data < fed.rows.data) continue;
    const int64_t offset = x.data - fed.rows.data, pitch = x.stride[0] * size_of(x.type), row = offset / pitch;
    if (offset % pitch != 0 || row + x.dim[0] > fed.rows.dim[0]) continue;
    const Float8Rows form = fed.form.from(row);
    if (row + x.dim[0] == fed.rows.dim[0]) fed = {};
    return form;
  }
  return {};
}

void CudaOps::feeds(const Linear& reader, bool alone) { plans_->feeds(static_cast<const CudaLinear&>(reader), alone); }

Float8Rows CudaOps::fed_rows(FedBy op, const View& rows, bool vectors) { return plans_->fed_rows(op, rows, vectors); }

}  // namespace h3::cuda
