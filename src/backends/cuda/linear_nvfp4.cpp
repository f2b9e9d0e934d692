// Weights in NVFP4 times activations quantised to NVFP4 row by row, on the tensor cores of compute capability 10.0 and
// later. Both operands have the even column in the high nibble, as files do; the library takes it for the other way
// round, and a dot product over a block does not mind. So the weights are multiplied as they are stored.
#include <algorithm>

#include "backends/cuda/linear_plans.h"
#include "codec/nvfp4.h"
#include "codec/packed.h"

namespace h3::cuda {
namespace {

constexpr int64_t kDepthStep = 32;   // columns of the 16 bytes that the library's operands are multiples of
constexpr int64_t kOutputStep = 16;  // rows of a stored matrix without padding

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

// A pre_quant_scale would have to meet the activations before their codes: such matrices are expanded.
bool LinearPlans::fits_nvfp4(const CudaLinear& weight) const {
  if (!multiplies_nvfp4() || weight.compute != Compute::packed || weight.in % kDepthStep != 0) return false;
  return std::all_of(weight.packed.begin(), weight.packed.end(), [](const PackedSegment& s) {
    return s.format == Format::nvfp4 && s.planes[4] < 0 && s.rows.rows % kOutputStep == 0;
  });
}

int64_t LinearPlans::nvfp4_row_bytes(const CudaLinear& weight) const {
  return weight.in / 2 + weight.in / 16 + 4 + 4 * weight.out;
}

void LinearPlans::run_nvfp4(const CudaLinear& weight, const View& x, const View& y, bool onto) {
  const int64_t rows = x.dim[0], code_bytes = aligned(rows * weight.in / 2);
  const int64_t scale_bytes = aligned(nvfp4_scale_bytes(rows, weight.in)), factor_bytes = aligned(rows * 4);
  // One allocation serves the codes, their scales and factors, and the sums.
  const int64_t form_bytes = code_bytes + scale_bytes + factor_bytes;
  auto* const codes = static_cast<uint8_t*>(ops_.scratch(kOperandScratch, form_bytes + rows * weight.out * 4));
  uint8_t* const scales = codes + code_bytes;
  auto* const factors = reinterpret_cast<float*>(scales + scale_bytes);
  auto* const sums = reinterpret_cast<float*>(codes + form_bytes);
  quantise_nvfp4_rows(ops_.stream(), x, factors, codes, scales);
  for (const PackedSegment& segment : weight.packed) {
    const PackedRows stored = segment.at(weight.group != nullptr ? weight.group->base()
                                                                 : static_cast<const std::byte*>(segment.bytes.data()));
    matmul(weight, {.w = stored.data,
                    .x = codes,
                    .y = sums + segment.first,
                    .rows = rows,
                    .outs = segment.rows.rows,
                    .ldx = weight.in,
                    .ldy = weight.out,
                    .operand = DType::u8,
                    .out = DType::f32,
                    .w_blocks = stored.scale,
                    .x_blocks = scales});
  }
  scale_rows(ops_.stream(), sums, weight.out, factors, static_cast<const float*>(weight.scales.data()),
             static_cast<const float*>(weight.bias_f32.data()), y, onto);
}

}  // namespace h3::cuda
