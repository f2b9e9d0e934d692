#include "ops/contract.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "tensor/rows.h"

namespace h3::contract {
namespace {

using rows::load_row;
using rows::load_vector;

constexpr double kUnit = 0x1p-24;        // of f32, the accumulator
constexpr double kSafety = 8;            // style C4
constexpr double kFlushed = 0x1p-126;    // smallest normal f32
constexpr double kExpUnderflow = 1e-36;  // exp(-x) of f32 overflows beyond x = -88.7, where silu is -2.6e-37

double accumulated(int64_t depth) { return kSafety * std::sqrt(static_cast<double>(depth)) * kUnit; }

// One value per element from |element|.
template <typename F>
Slack each(const View& view, F f) {
  Slack slack;
  slack.reserve(static_cast<size_t>(view.elements()));
  for (int64_t row = 0; row < rows::row_count(view); ++row) {
    for (double e : load_row(view, row)) slack.push_back(f(std::fabs(e)));
  }
  return slack;
}

double inverse_rms(const std::vector<double>& v, double eps) {
  double sum = 0;
  for (double e : v) sum += e * e;
  return 1 / std::sqrt(sum / static_cast<double>(v.size()) + eps);
}

struct Moments {
  double mean_abs = 0, factor = 0;  // mean |x|; 1 / sqrt(var + eps)
};

Moments moments(const std::vector<double>& v, double eps) {
  Moments m;
  double mean = 0, variance = 0;
  for (double e : v) mean += e, m.mean_abs += std::fabs(e);
  mean /= static_cast<double>(v.size());
  m.mean_abs /= static_cast<double>(v.size());
  for (double e : v) variance += (e - mean) * (e - mean);
  m.factor = 1 / std::sqrt(variance / static_cast<double>(v.size()) + eps);
  return m;
}

int32_t int_at(const View& view, int64_t row, int64_t i) {
  return reinterpret_cast<const int32_t*>(rows::row_address(view, row))[i * view.stride[view.rank - 1]];
}

int64_t id_at(const View& ids, int64_t i) { return host<int32_t>(ids)[i * ids.stride[0]]; }

}  // namespace

double unit_roundoff(DType type) {
  switch (type) {
    case DType::f32: return 0x1p-24;
    case DType::bf16: return 0x1p-8;
    case DType::f16: return 0x1p-11;
    default: return 0x1p-53;
  }
}

std::optional<Divergence> find_divergence(const View& got, const View& want, const Slack& slack) {
  H3_ASSERT(rows::same_dims(got, want) && got.type == want.type);
  H3_ASSERT(slack.empty() || static_cast<int64_t>(slack.size()) == want.elements());
  Divergence found;
  const int64_t length = rows::row_length(want);
  const auto note = [&](int64_t index, double g, double w, double allowed) {
    if (found.bad++ == 0) found.index = index, found.got = g, found.want = w, found.allowed = allowed;
  };
  // Two roundings of f16 subnormals differ by a spacing whatever the value.
  const double least = slack.empty() || want.type != DType::f16 ? kFlushed : 0x1p-24;
  for (int64_t row = 0; row < rows::row_count(want); ++row) {
    if (!is_float(want.type)) {
      H3_ASSERT(want.type == DType::i32);
      for (int64_t i = 0; i < length; ++i) {
        const int32_t w = int_at(want, row, i), g = int_at(got, row, i);
        if (g != w) note(row * length + i, g, w, 0);
      }
      continue;
    }
    const std::vector<double> g = load_row(got, row), w = load_row(want, row);
    for (int64_t i = 0; i < length; ++i) {
      const int64_t index = row * length + i;
      if (std::isnan(w[i]) ? std::isnan(g[i]) : g[i] == w[i]) continue;
      if (!slack.empty() && slack[index] == kOpen) continue;
      const double allowed =
          least + (slack.empty() ? 0 : slack[index] + 2 * unit_roundoff(want.type) * std::fabs(w[i]));
      if (!std::isfinite(w[i]) || !(std::fabs(g[i] - w[i]) <= allowed)) note(index, g[i], w[i], allowed);
    }
  }
  if (found.bad == 0) return std::nullopt;
  return found;
}

Slack rms_norm(const View& want, NormRounding rounding) {
  const double relative =
      accumulated(want.dim[want.rank - 1]) + (rounding == NormRounding::twice ? 2 * unit_roundoff(want.type) : 0);
  return each(want, [&](double y) { return relative * y; });
}

Slack layer_norm(const View& x, const View& w, const View& b, float eps) {
  const std::vector<double> weight = load_vector(w), bias = load_vector(b);
  const int64_t n = rows::row_length(x);
  Slack slack;
  for (int64_t row = 0; row < rows::row_count(x); ++row) {
    const std::vector<double> v = load_row(x, row);
    const Moments m = moments(v, static_cast<double>(eps));
    for (int64_t i = 0; i < n; ++i) {
      double e = (std::fabs(v[i]) + m.mean_abs) * m.factor;
      if (!weight.empty()) e *= std::fabs(weight[i]);
      if (!bias.empty()) e += std::fabs(bias[i]);
      slack.push_back(accumulated(n) * e);
    }
  }
  return slack;
}

Slack norm_modulate(const View& x, const View& w, float eps, const Modulation& mod, DType type) {
  const std::vector<double> weight = load_vector(w);
  const double u = unit_roundoff(type);
  const int64_t n = rows::row_length(x);
  Slack slack;
  for (int64_t row = 0; row < rows::row_count(x); ++row) {
    const std::vector<double> v = load_row(x, row), scale = load_row(mod.scale, id_at(mod.ids, row));
    const double factor = inverse_rms(v, static_cast<double>(eps));
    for (int64_t i = 0; i < n; ++i) {
      const double normed = std::fabs(v[i] * factor * (weight.empty() ? 1 : weight[i]));
      const double scaled = normed * std::fabs(1 + scale[i]);
      slack.push_back((accumulated(n) + 2 * u) * scaled + 2 * u * scaled);
    }
  }
  return slack;
}

Slack head_norm_rope(const View& x, const Ops::HeadNorm& norm, const Rope& rope) {
  const std::vector<double> weight = load_vector(norm.w);
  const double u = unit_roundoff(x.type);
  const int64_t heads = x.dim[1], d = x.dim[2], pairs = rope.cos.empty() ? 0 : rope.cos.dim[1];
  const double normed = norm.enabled ? accumulated(d) + (norm.rounding == NormRounding::twice ? 4 : 2) * u : 0;
  Slack slack;
  for (int64_t row = 0; row < rows::row_count(x); ++row) {
    std::vector<double> v = load_row(x, row), c, s;
    if (norm.enabled) {
      const double factor = inverse_rms(v, static_cast<double>(norm.eps));
      for (int64_t i = 0; i < d; ++i) v[i] *= factor * (weight.empty() ? 1 : weight[i]);
    }
    if (pairs > 0) c = load_row(rope.cos, row / heads), s = load_row(rope.sin, row / heads);
    for (int64_t i = 0; i < d; ++i) {
      if (i >= 2 * pairs) {
        slack.push_back(normed * std::fabs(v[i]));
        continue;
      }
      const int64_t j = i % pairs, other = i < pairs ? i + pairs : j;
      const double m = std::fabs(v[i] * c[j]) + std::fabs(v[other] * s[j]);
      slack.push_back((normed + kSafety * kUnit + (rope.rounding == RopeRounding::per_op ? 2 * u : 0)) * m);
    }
  }
  return slack;
}

Slack swiglu(const View& gate, const View& value, const View& want) {
  const double relative = kSafety * kUnit + 2 * unit_roundoff(gate.type);
  Slack slack = each(want, [&](double y) { return relative * y; });
  const Slack floor = each(value, [&](double v) { return kExpUnderflow * v; });
  for (size_t i = 0; i < slack.size(); ++i) slack[i] += floor[i];
  return slack;
}

Slack silu(const View& want) {
  return each(want, [](double y) { return kSafety * kUnit * y + kExpUnderflow; });
}

Slack gelu(const View& x) {  // 1 + tanh cancels for negative x, so the error is one of x
  return each(x, [](double v) { return kSafety * kUnit * v; });
}

// The product of an f32 scale and a T is rounded to f32 on its way to T where arithmetic is f32, not in the oracle.
Slack scaled_add(const View& y, const View& scale, DType type) {
  if (type == DType::f32) return {};
  const std::vector<double> s = load_vector(scale);
  const double u = unit_roundoff(type);
  size_t i = 0;
  return each(y, [&](double v) { return 2 * u * v * std::fabs(s[i++ % s.size()]); });
}

Slack l1_pair(const View& a, const View& want) {
  return each(want, [&](double y) { return accumulated(a.elements()) * y; });
}

Slack dot(const View& magnitude, int64_t depth) {
  return each(magnitude, [&](double m) { return accumulated(depth) * m; });
}

namespace {

// Elements whose value the contract leaves open: under a causal mask a NaN or Inf of v may also reach earlier queries,
// because tiled kernels multiply it by their zero weight.
void open_masked_values(const AttentionArgs& args, Slack& slack) {
  const int r = args.v.rank;
  const int64_t batch = r == 4 ? args.v.dim[0] : 1, keys = args.v.dim[r - 3], d = args.v.dim[r - 1];
  const int64_t heads = args.q.dim[r - 2], group = heads / args.v.dim[r - 2];
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t head = 0; head < heads; ++head) {
      std::vector<int64_t> last(static_cast<size_t>(d), -1);  // the last key whose v is not finite
      for (int64_t key = 0; key < keys; ++key) {
        const std::vector<double> v = load_row(args.v, (b * keys + key) * (heads / group) + head / group);
        for (int64_t e = 0; e < d; ++e) {
          if (!std::isfinite(v[e])) last[e] = key;
        }
      }
      for (int64_t query = 0; query < keys; ++query) {
        for (int64_t e = 0; e < d; ++e) {
          if (last[e] > query) slack[((b * keys + query) * heads + head) * d + e] = kOpen;
        }
      }
    }
  }
}

// Eight bits: the codes agree, and scores are whole numbers times scales. A weight within a few units of the middle
// between two values of e4m3 may fall either way, about one in 10^5: half an eighth of the largest weight, twice. The
// sums are cut as add_float8_sums says, and a maximum next to a power of two moves the smallest codes.
Slack eight_bit_attention(const AttentionArgs& args, const View& magnitude) {
  const int r = args.q.rank;
  const int64_t keys = args.k.dim[r - 3], heads = args.q.dim[r - 2], queries = args.q.dim[r - 3];
  Slack slack;
  for (int64_t row = 0; row < rows::row_count(magnitude); ++row) {
    const int64_t head = row % heads, batch = row / heads / queries;
    const std::vector<double> q = load_row(args.q, row);
    std::vector<double> scores, largest(q.size());
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t key = (batch * keys + j) * heads + head;
      const std::vector<double> k = load_row(args.k, key), v = load_row(args.v, key);
      double dot = 0;
      for (size_t e = 0; e < q.size(); ++e) dot += q[e] * k[e], largest[e] = std::max(largest[e], std::fabs(v[e]));
      scores.push_back(dot * static_cast<double>(args.scale));
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double score : scores) sum += std::exp(score - top);
    const std::vector<double> m = load_row(magnitude, row);
    for (size_t e = 0; e < q.size(); ++e) slack.push_back(0x1p-10 * m[e] + 0.125 / sum * largest[e]);
  }
  return slack;
}

}  // namespace

Slack attention(const AttentionArgs& args, const View& magnitude) {
  if (args.math == AttentionMath::eight_bit) return eight_bit_attention(args, magnitude);
  const int64_t d = args.q.dim[args.q.rank - 1], keys = args.k.dim[args.k.rank - 3];
  const auto norm_of = [](const View& view, int64_t row) {
    double sum = 0;
    for (double e : load_row(view, row)) sum += e * e;
    return std::sqrt(sum);
  };
  double key = 0;  // the largest |k|, which with |q| bounds every sum |q_e k_e|
  for (int64_t row = 0; row < rows::row_count(args.k); ++row) key = std::max(key, norm_of(args.k, row));
  const DType type = args.v.type;
  // Two roundings of P: the oracle rounds the normalised weights, a fast path those before the division.
  const double rounding = type == DType::f32 ? 0 : 2 * unit_roundoff(type);
  Slack slack;
  for (int64_t row = 0; row < rows::row_count(magnitude); ++row) {
    const double score = std::fabs(static_cast<double>(args.scale)) * norm_of(args.q, row) * key;
    const double relative = 2 * accumulated(d) * score + kSafety * kUnit + rounding + accumulated(keys);
    for (double m : load_row(magnitude, row)) slack.push_back(relative * m);
  }
  if (args.causal) open_masked_values(args, slack);
  return slack;
}

Slack sparse_attention(const SparseAttentionArgs& args, const View& magnitude) {
  AttentionArgs dense;
  dense.q = args.q;
  dense.k = args.k;
  dense.v = args.v;
  dense.scale = args.scale;
  Slack slack = attention(dense, magnitude);
  // A summary key that falls the other way in T moves its scores by |q| u_T |its mean|, and its value by u_T.
  if (args.v.type == DType::f32) return slack;
  const double u = unit_roundoff(args.v.type);
  double key = 0;
  const auto norm = [](const std::vector<double>& row) {
    double sum = 0;
    for (double e : row) sum += e * e;
    return std::sqrt(sum);
  };
  const int64_t heads = args.k.dim[1];
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t first = 0; first < args.k.dim[0]; first += kSparseBlock) {
      const int64_t end = std::min(first + kSparseBlock, args.k.dim[0]);
      std::vector<double> mean(static_cast<size_t>(args.k.dim[2]));
      for (int64_t r = first; r < end; ++r) {
        const std::vector<double> values = load_row(args.k, r * heads + head);
        for (size_t d = 0; d < mean.size(); ++d) mean[d] += values[d] / static_cast<double>(end - first);
      }
      key = std::max(key, norm(mean));
    }
  }
  size_t i = 0;
  for (int64_t row = 0; row < rows::row_count(magnitude); ++row) {
    const double relative =
        4 * u * (1 + std::fabs(static_cast<double>(args.scale)) * norm(load_row(args.q, row)) * key);
    for (double m : load_row(magnitude, row)) slack[i++] += relative * m;
  }
  return slack;
}

Slack linear_add(const View& want, const View& magnitude, float scale, int64_t depth) {
  Slack slack = dot(magnitude, depth);
  const double s = std::fabs(static_cast<double>(scale));
  size_t i = 0;
  // The scaled product and the sum round to f32 before the one rounding to T.
  for (int64_t row = 0; row < rows::row_count(magnitude); ++row) {
    const std::vector<double> y = load_row(want, row), m = load_row(magnitude, row);
    for (size_t e = 0; e < y.size(); ++e, ++i) slack[i] = s * slack[i] + 4 * kUnit * (s * m[e] + std::fabs(y[e]));
  }
  return slack;
}

Slack group_norm_silu(const View& x, int groups, const View& w, const View& b, float eps) {
  const std::vector<double> weight = load_vector(w), bias = load_vector(b);
  const int64_t channels = x.dim[0] / groups, frames = x.dim[1], plane = x.dim[2] * x.dim[3];
  Slack slack(static_cast<size_t>(x.elements()));
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t t = 0; t < frames; ++t) {
      std::vector<double> v;
      for (int64_t c = group * channels; c < (group + 1) * channels; ++c) {
        for (int64_t h = 0; h < x.dim[2]; ++h) {
          const std::vector<double> line = load_row(x, (c * frames + t) * x.dim[2] + h);
          v.insert(v.end(), line.begin(), line.end());
        }
      }
      const Moments m = moments(v, static_cast<double>(eps));
      for (size_t i = 0; i < v.size(); ++i) {
        const int64_t c = group * channels + static_cast<int64_t>(i) / plane;
        const double e = (std::fabs(v[i]) + m.mean_abs) * m.factor * std::fabs(weight[c]) + std::fabs(bias[c]);
        // |d silu| <= 1.1, and silu itself is within a few units of its argument.
        const double slope = 1.1 * accumulated(static_cast<int64_t>(v.size())) + kSafety * kUnit;
        slack[(c * frames + t) * plane + static_cast<int64_t>(i) % plane] = slope * e + kExpUnderflow;
      }
    }
  }
  return slack;
}

Slack snake(const View& x, const View& a, const View& inv) {
  const std::vector<double> alpha = load_vector(a), inverse = load_vector(inv);
  const int64_t length = x.dim[1];
  int64_t i = 0;
  return each(x, [&](double v) {  // |d sin^2| <= 1, and its argument a x is rounded
    const int64_t c = i++ / length;
    return kSafety * kUnit * (v + std::fabs(inverse[c]) * (1 + std::fabs(alpha[c]) * v));
  });
}

Slack aa_snake(const View& x, const View& a, const View& inv, const View& up, const View& down) {
  const std::vector<double> alpha = load_vector(a), inverse = load_vector(inv);
  const std::vector<double> f = load_vector(up), g = load_vector(down);
  const int64_t n = x.dim[1];
  Slack slack;
  for (int64_t c = 0; c < x.dim[0]; ++c) {
    const std::vector<double> v = load_row(x, c);
    std::vector<double> error(static_cast<size_t>(2 * n));  // of the activated signal, and its size for the sum below
    for (int64_t j = 0; j < 2 * n; ++j) {
      double m = 0;
      for (int q = 0; q < 6; ++q) {
        const int64_t at = std::clamp<int64_t>(j / 2 + (j % 2 == 0 ? 2 : 3) - q, 0, n - 1);
        m += 2 * std::fabs(f[2 * q + (j % 2 == 0 ? 1 : 0)] * v[at]);
      }
      const double sharp = 1 + std::fabs(alpha[c] * inverse[c]);
      const double size = m + std::fabs(inverse[c]) * (1 + std::fabs(alpha[c]) * m);
      error[j] = accumulated(6) * m * sharp + kSafety * kUnit * size + accumulated(12) * size;
    }
    for (int64_t m = 0; m < n; ++m) {
      double e = 0;
      for (int k = 0; k < 12; ++k) e += std::fabs(g[k]) * error[std::clamp<int64_t>(2 * m + k - 5, 0, 2 * n - 1)];
      slack.push_back(e);
    }
  }
  return slack;
}

void add_rounded_weights(const View& x, const View& magnitude, Slack& slack) {
  if (x.type == DType::f32) return;
  const double u = unit_roundoff(x.type);
  const int64_t out = magnitude.dim[1];
  for (int64_t row = 0; row < rows::row_count(x); ++row) {
    double sum = 0;
    for (double e : load_row(x, row)) sum += std::fabs(e);
    const double least = x.type == DType::f16 ? 0x1p-25 * sum : 0;  // half the spacing of subnormal weights
    const std::vector<double> m = load_row(magnitude, row);
    for (int64_t o = 0; o < out; ++o) slack[row * out + o] += u * m[o] + least;
  }
}

void add_float8_sums(const View& magnitude, Slack& slack) {
  size_t i = 0;
  for (int64_t row = 0; row < rows::row_count(magnitude); ++row) {
    for (double m : load_row(magnitude, row)) slack[i++] += 0x1p-11 * m;
  }
}

void add_rounded_product(const View& want, const View& alone, DType type, Slack& slack) {
  const double u = 2 * unit_roundoff(type) + 4 * kUnit;
  size_t i = 0;
  for (int64_t row = 0; row < rows::row_count(want); ++row) {
    const std::vector<double> y = load_row(want, row), p = load_row(alone, row);
    for (size_t e = 0; e < y.size(); ++e, ++i) slack[i] += u * std::fabs(p[e]) + 4 * kUnit * std::fabs(y[e]);
  }
}

void add_int8_activations(const View& x, const std::vector<double>& l1, const std::vector<double>& l2, Slack& slack) {
  const size_t out = l1.size();
  for (int64_t row = 0; row < rows::row_count(x); ++row) {
    double top = 0;
    for (double e : load_row(x, row)) top = std::max(top, std::fabs(e));
    const double step = top / 127;
    // Each error is at most step / 2 and has the deviation step / sqrt(12): eight deviations, or the sum when smaller.
    for (size_t o = 0; o < out; ++o) slack[row * out + o] += std::min(0.5 * step * l1[o], 8 * step / 3.4641 * l2[o]);
  }
}

}  // namespace h3::contract
