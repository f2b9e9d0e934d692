// Error bounds of a linear with what follows it: what the linear may be off, carried through the operation behind it.
#include <cmath>

#include "base/error.h"
#include "ops/contract.h"
#include "tensor/rows.h"

namespace h3::contract {
namespace {

// Of element i of a linear's result: what its sum may be off, and a rounding to T that falls the other way.
double off_by(double value, double slack, DType type) {
  const double subnormal = type == DType::f16 ? 0x1p-24 : 0;
  return slack + 2 * unit_roundoff(type) * std::fabs(value) + subnormal;
}

}  // namespace

Slack linear_swiglu(const View& gate, const View& up, const View& want, const Slack& slack) {
  const Slack own = swiglu(gate, up, want);
  const int64_t half = gate.dim[1];
  Slack out;
  out.reserve(own.size());
  for (int64_t row = 0; row < gate.dim[0]; ++row) {
    const std::vector<double> g = rows::load_row(gate, row), v = rows::load_row(up, row);
    for (int64_t i = 0; i < half; ++i) {
      const double eg = off_by(g[i], slack[row * 2 * half + i], gate.type);
      const double ev = off_by(v[i], slack[row * 2 * half + half + i], gate.type);
      const double silu = g[i] / (1 + std::exp(-g[i]));
      // The slope of silu lies between -0.1 and 1.1.
      out.push_back(own[row * half + i] + (std::fabs(silu) + 1.1 * eg) * ev + 1.1 * eg * std::fabs(v[i]));
    }
  }
  return out;
}

Slack linear_scaled_add(const View& sums, const View& scale, DType type, const Slack& slack) {
  const std::vector<double> s = rows::load_vector(scale);
  const Slack own = scaled_add(sums, scale, type);
  Slack out;
  out.reserve(slack.size());
  for (int64_t row = 0; row < sums.dim[0]; ++row) {
    const std::vector<double> v = rows::load_row(sums, row);
    for (size_t i = 0; i < v.size(); ++i) {
      const size_t at = row * v.size() + i;
      out.push_back((own.empty() ? 0 : own[at]) + std::fabs(s[i]) * off_by(v[i], slack[at], sums.type));
    }
  }
  return out;
}

Slack linear_head_norm_rope(const View& sums, int64_t heads, int64_t d, const Ops::HeadNorm& norm, const Rope& rope,
                            const Slack& slack) {
  const Slack own = head_norm_rope(sums.slice(1, 0, heads * d).split(1, d), norm, rope);
  const std::vector<double> weight = rows::load_vector(norm.w);
  const int64_t outs = sums.dim[1], pairs = rope.cos.empty() ? 0 : rope.cos.dim[1];
  Slack out = slack;
  for (int64_t row = 0; row < sums.dim[0]; ++row) {
    const std::vector<double> v = rows::load_row(sums, row);
    std::vector<double> c, s;
    if (pairs > 0) c = rows::load_row(rope.cos, row), s = rows::load_row(rope.sin, row);
    for (int64_t head = 0; head < heads; ++head) {
      const double* const x = v.data() + head * d;
      std::vector<double> error(static_cast<size_t>(d));
      double squares = 0, errors = 0;
      for (int64_t i = 0; i < d; ++i) {
        error[i] = off_by(x[i], slack[row * outs + head * d + i], sums.type);
        squares += x[i] * x[i];
        errors += error[i] * error[i];
      }
      if (norm.enabled) {
        const double factor = 1 / std::sqrt(squares / static_cast<double>(d) + static_cast<double>(norm.eps));
        const double turn = std::sqrt(errors / (squares + static_cast<double>(d) * static_cast<double>(norm.eps)));
        for (int64_t i = 0; i < d; ++i) {
          const double w = weight.empty() ? 1 : std::fabs(weight[i]), normed = factor * w;
          error[i] = normed * (error[i] + (std::fabs(x[i]) + error[i]) * turn);
          error[i] += 2 * unit_roundoff(sums.type) * normed * std::fabs(x[i]);  // its rounding the other way
        }
      }
      for (int64_t i = 0; i < d; ++i) {
        double e = error[i];
        if (i < 2 * pairs) {
          const int64_t j = i % pairs, other = i < pairs ? i + pairs : j;
          e = error[i] * std::fabs(c[j]) + error[other] * std::fabs(s[j]);
        }
        out[row * outs + head * d + i] = own[(row * heads + head) * d + i] + e;
      }
    }
  }
  return out;
}

}  // namespace h3::contract
