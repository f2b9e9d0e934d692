// Linears with what follows them, where kernels/linear_hopper.cu takes the operands; else the composition.
#include "backends/cuda/backend.h"
#include "backends/cuda/linear_hopper.h"
#include "backends/cuda/linear_plans.h"
#include "base/error.h"

namespace h3::cuda {
namespace {

// Fewer rows leave most of the card idle in tiles of this size; the library has smaller ones.
constexpr int64_t kLeastRows = 256;

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// The operands of x W^T in the types that are multiplied. e4m3: without the codes of x, which run() makes.
bool operands(const CudaLinear& weight, const View& x, FusedLinear& job) {
  if (x.type != DType::f16 || x.stride[1] != 1 || x.dim[0] < kLeastRows) return false;
  job.rows = x.dim[0], job.outs = weight.out, job.depth = weight.in;
  job.bias = static_cast<const float*>(weight.bias_f32.data());
  if (weight.packed.empty()) {
    if (weight.operand != DType::f16) return false;
    job.operand = DType::f16;
    job.x = x.data, job.x_pitch = x.stride[0];
    job.w = weight.operands();
    return true;
  }
  if (!weight.float8_activations || weight.packed.size() != 1) return false;
  const PackedSegment& whole = weight.packed.front();
  const auto* stored =
      weight.group != nullptr ? weight.group->base() : static_cast<const std::byte*>(whole.bytes.data());
  if (aligned(x.dim[0] * weight.in) + 4 * x.dim[0] > kQuantisedBytes) return false;
  job.operand = DType::u8;
  job.x_pitch = weight.in;
  job.w = stored + whole.planes[0];
  job.w_scale = static_cast<const float*>(weight.scales.data());
  return true;
}

void run(CudaOps& ops, const View& x, FusedLinear& job) {
  if (job.operand == DType::u8) {
    const int64_t codes = aligned(job.rows * job.depth);
    auto* const base = static_cast<std::byte*>(ops.scratch(kOperandScratch, codes + 4 * job.rows));
    auto* const scale = reinterpret_cast<float*>(base + codes);
    quantise_float8_rows(ops.stream(), x, reinterpret_cast<uint8_t*>(base), scale);
    job.x = base, job.x_scale = scale;
  }
  fused_linear(ops.stream(), job);
}

void check_shape(const View& view, int64_t rows, int64_t columns) {
  H3_ASSERT(view.rank == 2 && view.dim[0] == rows && view.dim[1] == columns && view.stride[1] == 1);
}

const CudaLinear& own(const Linear& weight) { return static_cast<const CudaLinear&>(weight); }

}  // namespace

void CudaOps::linear_swiglu(const Linear& weight, const View& x, const View& wide, const View& out) {
  const int64_t rows = x.dim[0];
  check_shape(x, rows, weight.in);
  check_shape(wide, rows, weight.out);
  check_shape(out, rows, weight.out / 2);
  H3_ASSERT(weight.out % 2 == 0 && wide.type == out.type);
  FusedLinear job;
  job.tail = FusedTail::swiglu;
  job.y = out.data, job.y_pitch = out.stride[0];
  if (out.type != DType::f16 || !operands(own(weight), x, job) || !fused_linear_takes(job)) {
    return Ops::linear_swiglu(weight, x, wide, out);
  }
  run(*this, x, job);
}

void CudaOps::linear_scaled_add(const Linear& weight, const View& h, const View& y, const View& scale, const View& x) {
  const int64_t rows = x.dim[0];
  check_shape(h, rows, weight.in);
  check_shape(y, rows, weight.out);
  check_shape(x, rows, weight.out);
  H3_ASSERT(scale.rank == 1 && scale.dim[0] == weight.out && scale.stride[0] == 1);
  FusedLinear job;
  job.tail = FusedTail::scaled_add;
  job.stream = reinterpret_cast<float*>(x.data), job.stream_pitch = x.stride[0];
  job.scale = reinterpret_cast<const float*>(scale.data);
  const bool types = x.type == DType::f32 && y.type == DType::f16 && scale.type == DType::f32;
  if (!types || !operands(own(weight), h, job) || !fused_linear_takes(job)) {
    return Ops::linear_scaled_add(weight, h, y, scale, x);
  }
  run(*this, h, job);
}

void CudaOps::linear_head_norm_rope(const Linear& weight, const View& x, int64_t heads, int64_t d, const HeadNorm& norm,
                                    const Rope& rope, const View& y) {
  const int64_t rows = x.dim[0];
  check_shape(x, rows, weight.in);
  check_shape(y, rows, weight.out);
  H3_ASSERT(heads >= 0 && heads * d <= weight.out);
  if (!rope.cos.empty()) {
    check_shape(rope.cos, rows, rope.cos.dim[1]);
    check_shape(rope.sin, rows, rope.cos.dim[1]);
    H3_ASSERT(rope.cos.type == DType::f32 && rope.sin.type == DType::f32);
  }
  FusedLinear job;
  job.tail = FusedTail::head_norm;
  job.y = y.data, job.y_pitch = y.stride[0];
  job.turned = heads * d, job.eps = norm.eps;
  const bool plain = norm.enabled && norm.w.empty() && norm.rounding == NormRounding::once && !rope.cos.empty() &&
                     rope.rounding == RopeRounding::once;
  const bool shape =
      plain && d == kFusedHead && rope.cos.dim[1] == kFusedPairs && rope.sin.stride[0] == rope.cos.stride[0];
  if (shape) {
    job.cos = reinterpret_cast<const float*>(rope.cos.data), job.sin = reinterpret_cast<const float*>(rope.sin.data);
    job.table_pitch = rope.cos.stride[0];
  }
  if (!shape || y.type != DType::f16 || !operands(own(weight), x, job) || !fused_linear_takes(job)) {
    return Ops::linear_head_norm_rope(weight, x, heads, d, norm, rope, y);
  }
  run(*this, x, job);
}

}  // namespace h3::cuda
