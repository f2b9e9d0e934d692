#include "backends/cuda/plan_check.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "codec/float8_row.h"
#include "codec/int8_row.h"
#include "codec/nvfp4_row.h"
#include "codec/scalar.h"

namespace h3::cuda {
namespace {

constexpr int64_t kRows = 3, kColumns = 8;  // looked at

double rounded(DType type, float v) {
  const float limit = 65504.0f;  // f16 operands saturate
  switch (type) {
    case DType::bf16: return bf16_to_f32(f32_to_bf16(v));
    case DType::f16: return f16_to_f32(f32_to_f16(std::clamp(v, -limit, limit)));
    default: return v;
  }
}

double roundoff(DType type) { return type == DType::bf16 ? 0x1p-9 : type == DType::f16 ? 0x1p-12 : 0x1p-25; }

// As the int8 path multiplies: integers times the scale of the row.
std::vector<double> quantised(const std::vector<float>& values) {
  float top = 0;
  for (float v : values) top = std::max(top, std::fabs(v));
  const float inverse = int8_row_inverse(top), scale = int8_row_scale(top);
  std::vector<double> out;
  for (float v : values) out.push_back(static_cast<double>(int8_row_quantise(v, inverse)) * scale);
  return out;
}

std::vector<double> operands(const CudaLinear& weight, DType activation, const std::vector<float>& values) {
  if (weight.operand == DType::i8) return quantised(values);
  if (weight.float8_activations || weight.nvfp4_activations) return {values.begin(), values.end()};
  const DType type = weight.packed.empty() || weight.compute != Compute::packed ? weight.operand : activation;
  std::vector<double> out;
  for (float v : values) out.push_back(rounded(type, v));
  return out;
}

int64_t spread(int64_t i, int64_t count, int64_t total) { return count < 2 ? 0 : i * (total - 1) / (count - 1); }

}  // namespace

void check_plan(const CudaLinear& weight, const View& x, const View& y) {
  const int64_t rows = std::min(kRows, x.dim[0]), columns = std::min(kColumns, weight.out);
  std::vector<std::vector<double>> w;
  std::vector<double> bias;
  for (int64_t j = 0; j < columns; ++j) {
    std::vector<float> row(static_cast<size_t>(weight.in));
    weight.source.decode_rows(spread(j, columns, weight.out), 1, row.data());
    w.push_back(operands(weight, x.type, row));
  }
  std::vector<float> biases;
  if (weight.bias_f32.data() != nullptr) {
    biases = download_f32(make_view(*x.device, weight.bias_f32.data(), DType::f32, {weight.out}));
  }
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t r = spread(i, rows, x.dim[0]);
    const std::vector<float> given = download_f32(x.slice(0, r, 1)), got = download_f32(y.slice(0, r, 1));
    if (!std::all_of(given.begin(), given.end(), [](float v) { return std::isfinite(v); })) continue;
    std::vector<double> a = operands(weight, x.type, given);
    if (weight.float8_activations) float8_row_round(a.data(), weight.in);
    if (weight.nvfp4_activations) nvfp4_row_round(a.data(), weight.in);
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t o = spread(j, columns, weight.out);
      double sum = biases.empty() ? 0 : biases[o], size = std::fabs(sum);
      for (int64_t k = 0; k < weight.in; ++k) {
        sum += a[k] * w[j][k];
        size += std::fabs(a[k] * w[j][k]);
      }
      const double depth = std::sqrt(static_cast<double>(weight.in));
      const bool codes = weight.float8_activations || weight.nvfp4_activations;
      const double sums = codes ? 0x1p-11 : 8 * depth * 0x1p-24;
      const double allowed = sums * size + 2 * roundoff(y.type) * std::fabs(sum) + 1e-37;
      if (std::fabs(got[o] - sum) <= allowed) continue;
      if (y.type == DType::f16 && std::fabs(sum) > 65504) continue;  // the result has no f16
      fail(Code::device,
           "%s: row %lld, column %lld of a product of %lld rows is %g on the card (%s) and %g on the host; the card or "
           "its libraries cannot be trusted, use --device cpu",
           weight.label.c_str(), static_cast<long long>(r), static_cast<long long>(o), static_cast<long long>(x.dim[0]),
           static_cast<double>(got[o]), weight.kernel.c_str(), sum);
    }
  }
}

}  // namespace h3::cuda
