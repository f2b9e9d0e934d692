#include <utility>

#include "backends/ref/ref_ops.h"
#include "tensor/rows.h"

namespace h3 {
namespace {

struct RefConv final : Conv {
  std::vector<float> weight;  // as ConvSpec, operands rounded as `compute` says
  std::vector<float> bias;
};

float round_operand(Compute compute, float value) {
  if (compute == Compute::bf16) return bf16_to_f32(f32_to_bf16(value));
  if (compute == Compute::f16) {
    const float limit = 65504.0f;
    return f16_to_f32(f32_to_f16(value > limit ? limit : value < -limit ? -limit : value));
  }
  return value;
}

// Index into [0, n) of position i, by reflection without the edge.
int64_t reflected(int64_t i, int64_t n) {
  if (n == 1) return 0;
  while (i < 0 || i >= n) i = i < 0 ? -i : 2 * (n - 1) - i;
  return i;
}

// A padded f32 copy of the input, [I, T, H, W] with all three axes grown.
struct Padded {
  int64_t dim[4];
  std::vector<float> data;
  const float* line(int64_t c, int64_t t, int64_t h) const {
    return &data[static_cast<size_t>(((c * dim[1] + t) * dim[2] + h) * dim[3])];
  }
};

// x as [I, T, H, W]; 1-D inputs have T = H = 1.
View as_4d(const View& x) {
  if (x.rank == 4) return x;
  H3_ASSERT(x.rank == 2);
  View out = x;
  out.rank = 4;
  out.dim = {x.dim[0], 1, 1, x.dim[1]};
  out.stride = {x.stride[0], 0, 0, x.stride[1]};
  return out;
}

Padded pad_input(ThreadPool& pool, const ConvSpec& spec, const View& x) {
  Padded out;
  out.dim[0] = x.dim[0];
  for (int i = 0; i < 3; ++i) out.dim[i + 1] = x.dim[i + 1] + spec.pad_before[i] + spec.pad_after[i];
  out.data.resize(static_cast<size_t>(out.dim[0] * out.dim[1] * out.dim[2] * out.dim[3]));
  const bool reflect = spec.spatial_pad == Pad::reflect;
  pool.parallel(x.dim[0] * x.dim[1], [&](int64_t task) {
    const int64_t c = task / x.dim[1], t = task % x.dim[1];
    std::vector<float> line(static_cast<size_t>(x.dim[3]));
    for (int64_t hp = 0; hp < out.dim[2]; ++hp) {
      int64_t h = hp - spec.pad_before[1];
      if (reflect) h = reflected(h, x.dim[2]);
      if (h < 0 || h >= x.dim[2]) continue;  // stays zero
      rows::load_row(x, (c * x.dim[1] + t) * x.dim[2] + h, 0, x.dim[3], line.data());
      float* to = const_cast<float*>(out.line(c, t + spec.pad_before[0], hp));
      for (int64_t wp = 0; wp < out.dim[3]; ++wp) {
        int64_t w = wp - spec.pad_before[2];
        if (reflect) w = reflected(w, x.dim[3]);
        if (w >= 0 && w < x.dim[3]) to[wp] = round_operand(spec.compute, line[w]);
      }
    }
  });
  return out;
}

// acc[i] += w * x[i * step], the inner loop of every convolution.
void accumulate(double* acc, double w, const float* x, int64_t step, int64_t count) {
  if (step == 1) {
    for (int64_t i = 0; i < count; ++i) acc[i] += w * static_cast<double>(x[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) acc[i] += w * static_cast<double>(x[i * step]);
  }
}

constexpr int64_t kLine = 512;  // outputs along the last axis per task

void conv_lines(ThreadPool& pool, const RefConv& conv, const Padded& x, const View& y) {
  const ConvSpec& s = conv.spec;
  const int64_t pieces = (y.dim[3] + kLine - 1) / kLine;
  const int64_t taps = static_cast<int64_t>(s.kernel[0]) * s.kernel[1] * s.kernel[2];
  pool.parallel(y.dim[0] * y.dim[1] * y.dim[2] * pieces, [&](int64_t task) {
    const int64_t row = task / pieces, begin = task % pieces * kLine, count = std::min(kLine, y.dim[3] - begin);
    const int64_t h = row % y.dim[2], t = row / y.dim[2] % y.dim[1], o = row / (y.dim[2] * y.dim[1]);
    double acc[kLine];
    std::fill(acc, acc + count, conv.bias.empty() ? 0.0 : static_cast<double>(conv.bias[o]));
    const float* w = &conv.weight[static_cast<size_t>(o * s.in * taps)];
    for (int64_t c = 0; c < s.in; ++c) {
      for (int kt = 0; kt < s.kernel[0]; ++kt) {
        for (int kh = 0; kh < s.kernel[1]; ++kh) {
          const float* line = x.line(c, t * s.stride[0] + kt * s.dilation[0], h * s.stride[1] + kh * s.dilation[1]);
          for (int kw = 0; kw < s.kernel[2]; ++kw) {
            accumulate(acc, *w++, line + begin * s.stride[2] + kw * s.dilation[2], s.stride[2], count);
          }
        }
      }
    }
    rows::store_row(y, row, begin, count, acc);
  });
}

// full[t * stride + j * dilation] += w[c][o][j] x[c][t], then the crop (spec vae 11).
void transposed_lines(ThreadPool& pool, const RefConv& conv, const Padded& x, const View& y) {
  const ConvSpec& s = conv.spec;
  const int64_t length = y.dim[1], n = x.dim[3], stride = s.stride[2];
  const int64_t pieces = (length + kLine - 1) / kLine;
  pool.parallel(s.out * pieces, [&](int64_t task) {
    const int64_t o = task / pieces, begin = task % pieces * kLine, count = std::min(kLine, length - begin);
    double acc[kLine];
    std::fill(acc, acc + count, conv.bias.empty() ? 0.0 : static_cast<double>(conv.bias[o]));
    for (int64_t c = 0; c < s.in; ++c) {
      const float* line = x.line(c, 0, 0);
      const float* w = &conv.weight[static_cast<size_t>((c * s.out + o) * s.kernel[2])];
      for (int j = 0; j < s.kernel[2]; ++j) {
        const int64_t offset = static_cast<int64_t>(j) * s.dilation[2] - s.pad_before[2] - begin;  // acc index of t = 0
        const int64_t first = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
        for (int64_t t = first; t < n && t * stride + offset < count; ++t) {
          acc[t * stride + offset] += static_cast<double>(w[j]) * static_cast<double>(line[t]);
        }
      }
    }
    rows::store_row(y, o, begin, count, acc);
  });
}

}  // namespace

std::unique_ptr<Conv> RefOps::make_conv(ConvSpec spec) {
  const int64_t taps = static_cast<int64_t>(spec.kernel[0]) * spec.kernel[1] * spec.kernel[2];
  H3_ASSERT(spec.in > 0 && spec.out > 0 && static_cast<int64_t>(spec.weight.size()) == spec.in * spec.out * taps);
  H3_ASSERT(spec.bias.empty() || static_cast<int64_t>(spec.bias.size()) == spec.out);
  H3_ASSERT(spec.kind == ConvKind::conv3d || (spec.kernel[0] == 1 && spec.kernel[1] == 1));
  H3_ASSERT(spec.compute == Compute::f32 || spec.compute == Compute::bf16 || spec.compute == Compute::f16);
  auto conv = std::make_unique<RefConv>();
  conv->label = spec.label;
  conv->kernel = "conv_ref";
  conv->weight = std::move(spec.weight);
  conv->bias = std::move(spec.bias);
  for (float& w : conv->weight) w = round_operand(spec.compute, w);
  conv->bytes = static_cast<int64_t>((conv->weight.size() + conv->bias.size()) * 4);
  spec.weight.clear();
  spec.bias.clear();
  conv->spec = std::move(spec);
  return conv;
}

void RefOps::conv(const Conv& conv, const View& x, const View& y) {
  const RefConv& c = static_cast<const RefConv&>(conv);
  const View in = as_4d(x), out = as_4d(y);
  int64_t extent[3];
  c.output_extent(&in.dim[1], extent);
  H3_ASSERT(in.dim[0] == c.spec.in && out.dim[0] == c.spec.out);
  H3_ASSERT(extent[0] == out.dim[1] && extent[1] == out.dim[2] && extent[2] == out.dim[3]);
  if (c.spec.kind == ConvKind::transposed1d) {
    ConvSpec whole = c.spec;  // the pads of a transposed convolution crop its output
    std::fill(whole.pad_before, whole.pad_before + 3, 0);
    std::fill(whole.pad_after, whole.pad_after + 3, 0);
    transposed_lines(context_.pool, c, pad_input(context_.pool, whole, in), y);
  } else {
    conv_lines(context_.pool, c, pad_input(context_.pool, c.spec, in), out);
  }
}

void RefOps::snake(const View& x, const View& a, const View& inv, const View& y) {
  H3_ASSERT(x.rank == 2 && rows::same_dims(x, y) && a.rank == 1 && inv.rank == 1);
  H3_ASSERT(a.dim[0] == x.dim[0] && inv.dim[0] == x.dim[0]);
  const std::vector<double> alpha = rows::load_vector(a), inverse = rows::load_vector(inv);
  for_pieces(y, [&](int64_t row, int64_t begin, int64_t count) {
    std::vector<double> v(static_cast<size_t>(count));
    rows::load_row(x, row, begin, count, v.data());
    for (double& e : v) {
      const double wave = std::sin(alpha[row] * e);
      e += wave * wave * inverse[row];
    }
    rows::store_row(y, row, begin, count, v.data());
  });
}

// The folded form of spec vae 11.
void RefOps::aa_snake(const View& x, const View& a, const View& inv, const View& up, const View& down, const View& y) {
  H3_ASSERT(x.rank == 2 && rows::same_dims(x, y) && a.rank == 1 && inv.rank == 1);
  H3_ASSERT(a.dim[0] == x.dim[0] && inv.dim[0] == x.dim[0]);
  const std::vector<double> alpha = rows::load_vector(a), inverse = rows::load_vector(inv);
  const std::vector<double> f = rows::load_vector(up), g = rows::load_vector(down);
  H3_ASSERT(f.size() == 12 && g.size() == 12);
  const int64_t n = x.dim[1];
  if (n == 0) return;
  context_.pool.parallel(x.dim[0], [&](int64_t c) {
    std::vector<double> v(static_cast<size_t>(n)), wide(static_cast<size_t>(2 * n));
    rows::load_row(x, c, 0, n, v.data());
    const auto at = [&](int64_t i) { return v[std::clamp<int64_t>(i, 0, n - 1)]; };
    for (int64_t m = 0; m < n; ++m) {
      double even = 0, odd = 0;
      for (int q = 0; q < 6; ++q) {
        even += f[2 * q + 1] * at(m + 2 - q);
        odd += f[2 * q] * at(m + 3 - q);
      }
      wide[2 * m] = 2 * even;
      wide[2 * m + 1] = 2 * odd;
    }
    for (double& e : wide) {
      const double wave = std::sin(alpha[c] * e);
      e += wave * wave * inverse[c];
    }
    for (int64_t m = 0; m < n; ++m) {
      double sum = 0;
      for (int k = 0; k < 12; ++k) sum += g[k] * wide[std::clamp<int64_t>(2 * m + k - 5, 0, 2 * n - 1)];
      v[m] = sum;
    }
    rows::store_row(y, c, 0, n, v.data());
  });
}

}  // namespace h3
