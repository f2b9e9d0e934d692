// Convolutions as implicit matmuls with f32 FMAs: out[o, p] = sum over (channel, taps) of w[o, k] x[k at p]. The order
// of k is fixed. 3-D ones of 16-bit operands: conv_tensor.cu; most 1-D ones: conv_signal.cu.
#include <utility>

#include "backends/cuda/conv.h"
#include "backends/cuda/kernels/common.cuh"
#include "codec/scalar.h"

namespace h3::cuda {
namespace {

constexpr int kOut = 64, kPos = 64, kDepth = 16, kThreads = 256;

struct Shape {
  int64_t x_stride[4], y_stride[4];  // channel, t, h, w; elements
  int64_t in[3], out[3];             // extents t, h, w
  int kernel[3], stride[3], dilation[3], pad[3];
  int64_t channels_out, depth, positions;
  bool reflect, transposed;
  int rounding;  // of the operands: 0 none, 1 bf16, 2 f16
};

__device__ inline int64_t reflected(int64_t i, int64_t n) {
  if (n == 1) return 0;
  while (i < 0 || i >= n) i = i < 0 ? -i : 2 * (n - 1) - i;
  return i;
}

__device__ inline float round_operand(float v, int rounding) {
  if (rounding == 1) return round_to<bf16>(v);
  if (rounding == 2) return round_to<__half>(v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v);
  return v;
}

// The input element that tap k of position p multiplies; 0 outside.
template <typename T>
__device__ inline float gather(const T* x, const Shape& s, int64_t k, int64_t p) {
  const int taps = s.kernel[0] * s.kernel[1] * s.kernel[2];
  const int64_t c = k / taps;
  int tap = static_cast<int>(k % taps);
  const int kw = tap % s.kernel[2];
  tap /= s.kernel[2];
  const int kh = tap % s.kernel[1], kt = tap / s.kernel[1];
  if (s.transposed) {
    const int64_t n = p + s.pad[2] - static_cast<int64_t>(kw) * s.dilation[2];
    if (n < 0 || n % s.stride[2] != 0 || n / s.stride[2] >= s.in[2]) return 0;
    return round_operand(to_float(x[c * s.x_stride[0] + n / s.stride[2] * s.x_stride[3]]), s.rounding);
  }
  const int64_t w0 = p % s.out[2], h0 = p / s.out[2] % s.out[1], t0 = p / (s.out[2] * s.out[1]);
  const int64_t t = t0 * s.stride[0] + static_cast<int64_t>(kt) * s.dilation[0] - s.pad[0];
  int64_t h = h0 * s.stride[1] + static_cast<int64_t>(kh) * s.dilation[1] - s.pad[1];
  int64_t w = w0 * s.stride[2] + static_cast<int64_t>(kw) * s.dilation[2] - s.pad[2];
  if (t < 0 || t >= s.in[0]) return 0;
  if (s.reflect) {
    h = reflected(h, s.in[1]);
    w = reflected(w, s.in[2]);
  } else if (h < 0 || h >= s.in[1] || w < 0 || w >= s.in[2]) {
    return 0;
  }
  return round_operand(to_float(x[c * s.x_stride[0] + t * s.x_stride[1] + h * s.x_stride[2] + w * s.x_stride[3]]),
                       s.rounding);
}

template <typename TX, typename TY>
__global__ void __launch_bounds__(kThreads)
    conv_kernel(const float* weight, const float* bias, const TX* x, TY* y, Shape s) {
  __shared__ float ws[kDepth][kOut + 4], xs[kDepth][kPos + 4];
  const int64_t o0 = blockIdx.y * int64_t{kOut}, p0 = blockIdx.x * int64_t{kPos};
  const int to = threadIdx.x / 16 * 4, tp = threadIdx.x % 16 * 4;
  float acc[4][4] = {};
  for (int64_t k0 = 0; k0 < s.depth; k0 += kDepth) {
    for (int i = threadIdx.x; i < kOut * kDepth; i += kThreads) {
      const int o = i / kDepth, k = i % kDepth;
      ws[k][o] = o0 + o < s.channels_out && k0 + k < s.depth ? weight[(o0 + o) * s.depth + k0 + k] : 0.0f;
    }
    for (int i = threadIdx.x; i < kPos * kDepth; i += kThreads) {
      const int p = i % kPos, k = i / kPos;
      xs[k][p] = p0 + p < s.positions && k0 + k < s.depth ? gather(x, s, k0 + k, p0 + p) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const float4 a = *reinterpret_cast<const float4*>(&ws[k][to]), b = *reinterpret_cast<const float4*>(&xs[k][tp]);
      const float av[4] = {a.x, a.y, a.z, a.w}, bv[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[i][j] = fmaf(av[i], bv[j], acc[i][j]);
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) {
    const int64_t o = o0 + to + i;
    if (o >= s.channels_out) break;
    const float b = bias != nullptr ? bias[o] : 0.0f;
    for (int j = 0; j < 4; ++j) {
      const int64_t p = p0 + tp + j;
      if (p >= s.positions) break;
      const int64_t w = p % s.out[2], h = p / s.out[2] % s.out[1], t = p / (s.out[2] * s.out[1]);
      y[o * s.y_stride[0] + t * s.y_stride[1] + h * s.y_stride[2] + w * s.y_stride[3]] = from_float<TY>(acc[i][j] + b);
    }
  }
}

float rounded(Compute compute, float v) {
  if (compute == Compute::bf16) return bf16_to_f32(f32_to_bf16(v));
  if (compute == Compute::f16) return f16_to_f32(f32_to_f16(v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v));
  return v;
}

void set_strides(const View& view, int64_t (&stride)[4], int64_t (&extent)[3]) {
  if (view.rank == 2) {
    stride[0] = view.stride[0], stride[1] = 0, stride[2] = 0, stride[3] = view.stride[1];
    extent[0] = 1, extent[1] = 1, extent[2] = view.dim[1];
    return;
  }
  H3_ASSERT(view.rank == 4);
  for (int i = 0; i < 4; ++i) stride[i] = view.stride[i];
  for (int i = 0; i < 3; ++i) extent[i] = view.dim[i + 1];
}

}  // namespace

namespace {

void pack_weight(CudaDevice& device, CudaConv& conv) {
  const ConvSpec& spec = conv.spec;
  const int64_t taps = conv.depth / spec.in;
  std::vector<float> packed(spec.weight.size());
  for (int64_t o = 0; o < spec.out; ++o) {
    for (int64_t c = 0; c < spec.in; ++c) {
      for (int64_t j = 0; j < taps; ++j) {  // transposed weights lie [in, out, k]
        const int64_t from =
            spec.kind == ConvKind::transposed1d ? (c * spec.out + o) * taps + j : (o * spec.in + c) * taps + j;
        packed[(o * spec.in + c) * taps + j] = rounded(spec.compute, spec.weight[from]);
      }
    }
  }
  conv.weight = device.allocate(static_cast<int64_t>(packed.size()) * 4, spec.label.c_str());
  device.upload(packed.data(),
                make_view(device, conv.weight.data(), DType::f32, {static_cast<int64_t>(packed.size())}));
  conv.kernel = "implicit_f32_fma";
}

}  // namespace

std::unique_ptr<Conv> CudaOps::make_conv(ConvSpec spec) {
  auto conv = std::make_unique<CudaConv>();
  conv->label = spec.label;
  conv->depth = spec.in * spec.kernel[0] * spec.kernel[1] * spec.kernel[2];
  H3_ASSERT(static_cast<int64_t>(spec.weight.size()) == spec.out * conv->depth);
  conv->spec = std::move(spec);
  const bool narrow = conv->spec.compute == Compute::bf16 || conv->spec.compute == Compute::f16;
  if (narrow && conv->spec.kind == ConvKind::conv3d) {
    pack_tensor_weight(device_, *conv);
  } else if (conv_signal_takes(conv->spec)) {
    pack_signal_weight(device_, *conv);
  } else {
    pack_weight(device_, *conv);
  }
  if (!conv->spec.bias.empty()) {
    conv->bias_buffer = device_.allocate(conv->spec.out * 4, conv->label.c_str());
    device_.upload(conv->spec.bias.data(), make_view(device_, conv->bias_buffer.data(), DType::f32, {conv->spec.out}));
  }
  conv->bytes = conv->weight.bytes() + conv->bias_buffer.bytes();
  conv->spec.weight = {};
  conv->spec.bias = {};
  return conv;
}

void CudaOps::conv(const Conv& base, const View& x, const View& y) {
  const auto& conv = static_cast<const CudaConv&>(base);
  const ConvSpec& spec = conv.spec;
  Shape s{};
  set_strides(x, s.x_stride, s.in);
  set_strides(y, s.y_stride, s.out);
  H3_ASSERT(x.dim[0] == spec.in && y.dim[0] == spec.out);
  int64_t expected[3];
  conv.output_extent(s.in, expected);
  H3_ASSERT(expected[2] == s.out[2] && (x.rank == 2 || (expected[0] == s.out[0] && expected[1] == s.out[1])));
  if (conv.tensor) return conv_tensor(*this, conv, x, y);
  if (conv.signal) return conv_signal(*this, conv, x, y);
  for (int i = 0; i < 3; ++i) {
    s.kernel[i] = spec.kernel[i], s.stride[i] = spec.stride[i], s.dilation[i] = spec.dilation[i],
    s.pad[i] = spec.pad_before[i];
  }
  s.channels_out = spec.out;
  s.depth = conv.depth;
  s.positions = s.out[0] * s.out[1] * s.out[2];
  s.reflect = spec.spatial_pad == Pad::reflect;
  s.transposed = spec.kind == ConvKind::transposed1d;
  s.rounding = spec.compute == Compute::bf16 ? 1 : spec.compute == Compute::f16 ? 2 : 0;
  const LaunchShape shape{
      dim3(static_cast<unsigned>(ceil_div(s.positions, kPos)), static_cast<unsigned>(ceil_div(spec.out, kOut))),
      dim3(kThreads), 0};
  H3_FLOAT_TYPE_AS(
      TX, x.type,
      H3_FLOAT_TYPE_AS(TY, y.type,
                       launch(stream(), conv.label.c_str(), conv_kernel<TX, TY>, shape,
                              static_cast<const float*>(conv.weight.data()),
                              static_cast<const float*>(conv.bias_buffer.data()), as<const TX>(x), as<TY>(y), s);))
}

}  // namespace h3::cuda
