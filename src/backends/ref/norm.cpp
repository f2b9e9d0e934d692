#include "backends/ref/ref_ops.h"
#include "tensor/rows.h"

namespace h3 {
namespace {

using rows::load_row;
using rows::load_vector;
using rows::round_to;
using rows::store_row;

double inverse_rms(const std::vector<double>& v, float eps) {
  double sum = 0;
  for (double e : v) sum += e * e;
  return 1 / std::sqrt(sum / static_cast<double>(v.size()) + static_cast<double>(eps));
}

// In place; w empty = no weight. Rounds to `type` at the end, and before the weight when asked.
void rms_norm_row(std::vector<double>& v, const std::vector<double>& w, float eps, NormRounding rounding, DType type) {
  const double factor = inverse_rms(v, eps);
  for (size_t i = 0; i < v.size(); ++i) {
    double e = v[i] * factor;
    if (rounding == NormRounding::twice) e = round_to(type, e);
    if (!w.empty()) e *= w[i];
    v[i] = round_to(type, e);
  }
}

int64_t table_row(const View& ids, int64_t s, int64_t rows) {
  const int32_t id = host<int32_t>(ids)[s * ids.stride[0]];
  H3_ASSERT(id >= 0 && id < rows);
  return id;
}

void check_table(const View& table, const View& ids, const View& x) {
  H3_ASSERT(x.rank == 2 && table.rank == 2 && table.dim[1] == x.dim[1]);
  H3_ASSERT(ids.rank == 1 && ids.type == DType::i32 && ids.dim[0] == x.dim[0]);
}

// Rotates one head in place. c and s are the row's tables, already rounded when the contract says so.
void rotate(std::vector<double>& v, const std::vector<double>& c, const std::vector<double>& s, RopeRounding rounding,
            DType type) {
  const size_t pairs = c.size();
  for (size_t j = 0; j < pairs; ++j) {
    const double a = v[j], b = v[j + pairs];
    double ac = a * c[j], bs = b * s[j], bc = b * c[j], as = a * s[j];
    if (rounding == RopeRounding::per_op) {
      ac = round_to(type, ac);
      bs = round_to(type, bs);
      bc = round_to(type, bc);
      as = round_to(type, as);
    }
    v[j] = round_to(type, ac - bs);
    v[j + pairs] = round_to(type, bc + as);
  }
}

}  // namespace

void RefOps::rms_norm(const View& x, const View& w, float eps, NormRounding rounding, const View& y) {
  H3_ASSERT(rows::same_dims(x, y));
  const int64_t n = rows::row_length(x);
  const std::vector<double> weight = load_vector(w);
  H3_ASSERT(weight.empty() || static_cast<int64_t>(weight.size()) == n);
  for_rows(rows::row_count(x), n, [&](int64_t row) {
    std::vector<double> v(static_cast<size_t>(n));
    load_row(x, row, 0, n, v.data());
    rms_norm_row(v, weight, eps, rounding, y.type);
    store_row(y, row, 0, n, v.data());
  });
}

void RefOps::layer_norm(const View& x, const View& w, const View& b, float eps, const View& y) {
  H3_ASSERT(rows::same_dims(x, y));
  const int64_t n = rows::row_length(x);
  const std::vector<double> weight = load_vector(w), bias = load_vector(b);
  H3_ASSERT(weight.empty() || static_cast<int64_t>(weight.size()) == n);
  H3_ASSERT(bias.empty() || static_cast<int64_t>(bias.size()) == n);
  for_rows(rows::row_count(x), n, [&](int64_t row) {
    std::vector<double> v(static_cast<size_t>(n));
    load_row(x, row, 0, n, v.data());
    double mean = 0, variance = 0;
    for (double e : v) mean += e;
    mean /= static_cast<double>(n);
    for (double e : v) variance += (e - mean) * (e - mean);
    variance /= static_cast<double>(n);
    const double factor = 1 / std::sqrt(variance + static_cast<double>(eps));
    for (int64_t i = 0; i < n; ++i) {
      v[i] = (v[i] - mean) * factor;
      if (!weight.empty()) v[i] *= weight[i];
      if (!bias.empty()) v[i] += bias[i];
    }
    store_row(y, row, 0, n, v.data());
  });
}

void RefOps::norm_modulate(const View& x, const View& w, float eps, const Modulation& mod, const View& h) {
  H3_ASSERT(rows::same_dims(x, h));
  check_table(mod.shift, mod.ids, x);
  check_table(mod.scale, mod.ids, x);
  const int64_t n = x.dim[1];
  const std::vector<double> weight = load_vector(w);
  H3_ASSERT(weight.empty() || static_cast<int64_t>(weight.size()) == n);
  const DType type = h.type;
  for_rows(x.dim[0], n, [&](int64_t row) {
    std::vector<double> v(static_cast<size_t>(n)), scale(v.size()), shift(v.size());
    load_row(x, row, 0, n, v.data());
    load_row(mod.scale, table_row(mod.ids, row, mod.scale.dim[0]), 0, n, scale.data());
    load_row(mod.shift, table_row(mod.ids, row, mod.shift.dim[0]), 0, n, shift.data());
    rms_norm_row(v, weight, eps, NormRounding::once, type);
    for (int64_t i = 0; i < n; ++i) {
      v[i] = round_to(type, v[i] * round_to(type, 1 + scale[i]));
      v[i] = round_to(type, v[i] + shift[i]);
    }
    store_row(h, row, 0, n, v.data());
  });
}

void RefOps::gated_add(const View& x, const View& y, const Gate& gate) {
  H3_ASSERT(rows::same_dims(x, y));
  check_table(gate.gate, gate.ids, x);
  const int64_t n = x.dim[1];
  for_rows(x.dim[0], n, [&](int64_t row) {
    std::vector<double> v(static_cast<size_t>(n)), branch(v.size()), g(v.size());
    load_row(x, row, 0, n, v.data());
    load_row(y, row, 0, n, branch.data());
    load_row(gate.gate, table_row(gate.ids, row, gate.gate.dim[0]), 0, n, g.data());
    for (int64_t i = 0; i < n; ++i) v[i] += round_to(x.type, g[i] * branch[i]);
    store_row(x, row, 0, n, v.data());
  });
}

void RefOps::head_norm_rope(const View& x, const HeadNorm& norm, const Rope& rope) {
  H3_ASSERT(x.rank == 3);
  const int64_t heads = x.dim[1], d = x.dim[2];
  const bool rotates = !rope.cos.empty();
  if (rotates) {
    H3_ASSERT(rope.cos.rank == 2 && rows::same_dims(rope.cos, rope.sin));
    H3_ASSERT(rope.cos.dim[0] == x.dim[0] && 2 * rope.cos.dim[1] <= d);
  }
  const std::vector<double> weight = load_vector(norm.w);
  H3_ASSERT(weight.empty() || static_cast<int64_t>(weight.size()) == d);
  for_rows(x.dim[0], heads * d, [&](int64_t row) {
    std::vector<double> v(static_cast<size_t>(d)), c, s;
    if (rotates) {
      c.resize(static_cast<size_t>(rope.cos.dim[1]));
      s.resize(c.size());
      load_row(rope.cos, row, 0, rope.cos.dim[1], c.data());
      load_row(rope.sin, row, 0, rope.sin.dim[1], s.data());
      if (rope.rounding == RopeRounding::per_op) {
        for (double& e : c) e = round_to(x.type, e);
        for (double& e : s) e = round_to(x.type, e);
      }
    }
    for (int64_t head = 0; head < heads; ++head) {
      load_row(x, row * heads + head, 0, d, v.data());
      if (norm.enabled) rms_norm_row(v, weight, norm.eps, norm.rounding, x.type);
      if (rotates) rotate(v, c, s, rope.rounding, x.type);
      store_row(x, row * heads + head, 0, d, v.data());
    }
  });
}

void RefOps::group_norm_silu(const View& x, int groups, const View& w, const View& b, float eps, const View& y) {
  H3_ASSERT(rows::same_dims(x, y) && x.rank == 4 && groups > 0 && x.dim[0] % groups == 0);
  const int64_t channels = x.dim[0] / groups, frames = x.dim[1], height = x.dim[2], width = x.dim[3];
  const std::vector<double> weight = load_vector(w), bias = load_vector(b);
  H3_ASSERT(static_cast<int64_t>(weight.size()) == x.dim[0] && static_cast<int64_t>(bias.size()) == x.dim[0]);
  context_.pool.parallel(groups * frames, [&](int64_t task) {
    const int64_t group = task / frames, frame = task % frames, first = group * channels;
    std::vector<double> v(static_cast<size_t>(channels * height * width));
    const auto row_of_line = [&](int64_t line) {  // line = channel within the group * height + h
      return ((first + line / height) * frames + frame) * height + line % height;
    };
    for (int64_t line = 0; line < channels * height; ++line) load_row(x, row_of_line(line), 0, width, &v[line * width]);
    double mean = 0, variance = 0;
    for (double e : v) mean += e;
    mean /= static_cast<double>(v.size());
    for (double e : v) variance += (e - mean) * (e - mean);
    variance /= static_cast<double>(v.size());
    const double factor = 1 / std::sqrt(variance + static_cast<double>(eps));
    for (int64_t line = 0; line < channels * height; ++line) {
      const int64_t c = first + line / height;
      double* p = &v[line * width];
      for (int64_t i = 0; i < width; ++i) {
        const double e = (p[i] - mean) * factor * weight[c] + bias[c];
        p[i] = e / (1 + std::exp(-e));
      }
      store_row(y, row_of_line(line), 0, width, p);
    }
  });
}

}  // namespace h3
