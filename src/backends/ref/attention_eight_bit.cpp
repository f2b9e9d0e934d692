// The second contract of Ops::attention: both products in eight bits.
#include "backends/ref/attention_heads.h"
#include "backends/ref/ref_ops.h"
#include "codec/float8_row.h"
#include "codec/int8_row.h"
#include "tensor/rows.h"

namespace h3 {
namespace {

constexpr double kLog2e = 1.4426950408889634;

// What the codes of one head's keys and values stand for, and their scales.
struct Codes {
  std::vector<double> k, v;              // [keys, d]: whole numbers; values of e4m3
  std::vector<double> k_scale, v_scale;  // [blocks], [d]
};

std::vector<double> load(const View& view) {
  const int64_t rows = view.dim[0], d = view.dim[1];
  std::vector<double> out(static_cast<size_t>(rows * d));
  for (int64_t row = 0; row < rows; ++row) rows::load_row(view, row, 0, d, &out[row * d]);
  return out;
}

// int8 in place; returns the scale.
double quantise(double* values, int64_t count) {
  const float top = absmax_of(values, count), inverse = int8_row_inverse(top);
  for (int64_t i = 0; i < count; ++i) values[i] = int8_row_quantise(static_cast<float>(values[i]), inverse);
  return static_cast<double>(int8_row_scale(top));
}

Codes encode(const View& k, const View& v) {
  const int64_t keys = k.dim[0], d = k.dim[1];
  Codes codes{load(k), load(v), {}, {}};
  for (int64_t e = 0; e < d; ++e) {
    double sum = 0;
    for (int64_t j = 0; j < keys; ++j) sum += codes.k[j * d + e];
    const double mean = rows::round_to(k.type, sum / static_cast<double>(keys));
    for (int64_t j = 0; j < keys; ++j) codes.k[j * d + e] = static_cast<float>(codes.k[j * d + e] - mean);
    const float top = absmax_of(&codes.v[e], keys, d), inverse = float8_row_inverse(top);
    codes.v_scale.push_back(static_cast<double>(float8_row_scale(top)));
    for (int64_t j = 0; j < keys; ++j) {
      double& value = codes.v[j * d + e];
      value = static_cast<double>(e4m3_to_f32(f32_to_e4m3(static_cast<float>(value) * inverse)));
    }
  }
  for (int64_t first = 0; first < keys; first += kEightBitKeys) {
    codes.k_scale.push_back(quantise(&codes.k[first * d], std::min(kEightBitKeys, keys - first) * d));
  }
  return codes;
}

void attend(const View& q, const View& out, const Codes& codes, double scale, int64_t row) {
  const int64_t d = q.dim[1], keys = static_cast<int64_t>(codes.k.size()) / d;
  std::vector<double> query(static_cast<size_t>(d)), z(static_cast<size_t>(keys)), sum(static_cast<size_t>(d));
  rows::load_row(q, row, 0, d, query.data());
  const double factor = quantise(query.data(), d) * scale * kLog2e;
  double top = -std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < keys; ++j) {
    double dot = 0;
    for (int64_t e = 0; e < d; ++e) dot += query[e] * codes.k[j * d + e];
    z[j] = dot * factor * codes.k_scale[static_cast<size_t>(j / kEightBitKeys)];
    top = z[j] > top ? z[j] : top;
  }
  double total = 0;
  for (int64_t j = 0; j < keys; ++j) {
    const double p = std::exp2(z[j] - std::ceil(top) + 8);  // a NaN anywhere reaches the sums
    const double code = static_cast<double>(e4m3_to_f32(f32_to_e4m3(static_cast<float>(p))));
    total += p;
    for (int64_t e = 0; e < d; ++e) sum[e] += code * codes.v[j * d + e];
  }
  for (int64_t e = 0; e < d; ++e) sum[e] = sum[e] * codes.v_scale[e] / total;
  rows::store_row(out, row, 0, d, sum.data());
}

}  // namespace

void RefOps::attention_eight_bit(const AttentionArgs& args) {
  const int rank = args.q.rank;
  const int64_t batch = rank == 4 ? args.q.dim[0] : 1, heads = args.q.dim[rank - 2], queries = args.q.dim[rank - 3];
  H3_ASSERT(!args.causal && args.k.dim[rank - 2] == heads);
  for (int64_t task = 0; task < batch * heads; ++task) {
    const int64_t b = task / heads, head = task % heads;
    const Codes codes = encode(head_of(args.k, b, head), head_of(args.v, b, head));
    const View q = head_of(args.q, b, head), out = head_of(args.out, b, head);
    context_.pool.parallel(queries, [&](int64_t row) { attend(q, out, codes, static_cast<double>(args.scale), row); });
  }
}

}  // namespace h3
