#include "backends/ref/ref_ops.h"
#include "tensor/rows.h"

namespace h3 {
namespace {

using rows::load_row;
using rows::round_to;
using rows::store_row;

double silu_of(double x) { return x / (1 + std::exp(-x)); }

double gelu_of(double x, Ops::Gelu kind) {
  if (kind == Ops::Gelu::erf) return 0.5 * x * (1 + std::erf(x * 0.70710678118654752440));
  const double inner = 0.79788456080286535588 * (x + 0.044715 * x * x * x);  // sqrt(2 / pi)
  return 0.5 * x * (1 + std::tanh(inner));
}

struct Pair {
  std::vector<double> a, b;
  Pair(const View& x, const View& y, int64_t row, int64_t begin, int64_t count)
      : a(static_cast<size_t>(count)), b(static_cast<size_t>(count)) {
    load_row(x, row, begin, count, a.data());
    load_row(y, row, begin, count, b.data());
  }
};

}  // namespace

void RefOps::swiglu(const View& gate, const View& value, const View& out) {
  H3_ASSERT(rows::same_dims(gate, value) && rows::same_dims(gate, out));
  for_pieces(out, [&](int64_t row, int64_t begin, int64_t count) {
    Pair v(gate, value, row, begin, count);
    for (int64_t i = 0; i < count; ++i) {
      v.a[i] = v.b[i] * round_to(gate.type, silu_of(v.a[i]));
      if (out.type == DType::f16) v.a[i] = v.a[i] > 65504 ? 65504 : v.a[i] < -65504 ? -65504 : v.a[i];
    }
    store_row(out, row, begin, count, v.a.data());
  });
}

void RefOps::silu(const View& x, const View& y) {
  H3_ASSERT(rows::same_dims(x, y));
  for_pieces(y, [&](int64_t row, int64_t begin, int64_t count) {
    std::vector<double> v(static_cast<size_t>(count));
    load_row(x, row, begin, count, v.data());
    for (double& e : v) e = silu_of(e);
    store_row(y, row, begin, count, v.data());
  });
}

void RefOps::gelu(const View& x, Gelu kind, const View& y) {
  H3_ASSERT(rows::same_dims(x, y));
  for_pieces(y, [&](int64_t row, int64_t begin, int64_t count) {
    std::vector<double> v(static_cast<size_t>(count));
    load_row(x, row, begin, count, v.data());
    for (double& e : v) e = gelu_of(e, kind);
    store_row(y, row, begin, count, v.data());
  });
}

void RefOps::add(const View& x, const View& y, const View& out) {
  H3_ASSERT(rows::same_dims(x, y) && rows::same_dims(x, out));
  for_pieces(out, [&](int64_t row, int64_t begin, int64_t count) {
    Pair v(x, y, row, begin, count);
    for (int64_t i = 0; i < count; ++i) v.a[i] += v.b[i];
    store_row(out, row, begin, count, v.a.data());
  });
}

void RefOps::subtract(const View& x, const View& y, const View& out) {
  H3_ASSERT(rows::same_dims(x, y) && rows::same_dims(x, out));
  for_pieces(out, [&](int64_t row, int64_t begin, int64_t count) {
    Pair v(x, y, row, begin, count);
    for (int64_t i = 0; i < count; ++i) v.a[i] -= v.b[i];
    store_row(out, row, begin, count, v.a.data());
  });
}

void RefOps::multiply(const View& x, const View& y, const View& out) {
  H3_ASSERT(rows::same_dims(x, y) && rows::same_dims(x, out));
  for_pieces(out, [&](int64_t row, int64_t begin, int64_t count) {
    Pair v(x, y, row, begin, count);
    for (int64_t i = 0; i < count; ++i) v.a[i] *= v.b[i];
    store_row(out, row, begin, count, v.a.data());
  });
}

void RefOps::scaled_add(const View& x, const View& y, const View& scale) {
  H3_ASSERT(rows::same_dims(x, y) && scale.rank == 1 && scale.dim[0] == rows::row_length(x));
  for_pieces(x, [&](int64_t row, int64_t begin, int64_t count) {
    Pair v(x, y, row, begin, count);
    std::vector<double> s(static_cast<size_t>(count));
    load_row(scale, 0, begin, count, s.data());
    // With an f32 stream and a narrower branch the product is promoted to f32, the type of x.
    for (int64_t i = 0; i < count; ++i) v.a[i] += round_to(x.type, s[i] * v.b[i]);
    store_row(x, row, begin, count, v.a.data());
  });
}

void RefOps::lincomb(const View& c, const View& a, const View& b, const View& out) {
  H3_ASSERT(rows::same_dims(a, b) && rows::same_dims(a, out) && c.rank == 1 && c.dim[0] == 2);
  H3_ASSERT(a.type == DType::f32 && b.type == DType::f32 && out.type == DType::f32);
  const std::vector<double> k = rows::load_vector(c);
  for_pieces(out, [&](int64_t row, int64_t begin, int64_t count) {
    Pair v(a, b, row, begin, count);
    for (int64_t i = 0; i < count; ++i) {
      v.a[i] = round_to(DType::f32, k[0] * v.a[i]) + round_to(DType::f32, k[1] * v.b[i]);
    }
    store_row(out, row, begin, count, v.a.data());
  });
}

void RefOps::channel_affine(const View& x, const View& std, const View& mean, const View& y) {
  H3_ASSERT(rows::same_dims(x, y) && x.rank >= 1 && std.rank == 1 && mean.rank == 1);
  H3_ASSERT(std.dim[0] == x.dim[0] && mean.dim[0] == x.dim[0]);
  const std::vector<double> s = rows::load_vector(std), m = rows::load_vector(mean);
  const int64_t rows_per_channel = x.rank < 2 || x.dim[0] == 0 ? 1 : rows::row_count(x) / x.dim[0];
  for_pieces(y, [&](int64_t row, int64_t begin, int64_t count) {
    std::vector<double> v(static_cast<size_t>(count));
    load_row(x, row, begin, count, v.data());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t c = x.rank == 1 ? begin + i : row / rows_per_channel;
      v[i] = round_to(DType::f32, v[i] * s[c]) + m[c];
    }
    store_row(y, row, begin, count, v.data());
  });
}

void RefOps::l1_pair(const View& a, const View& b, const View& out) {
  H3_ASSERT(rows::same_dims(a, b) && out.rank == 1 && out.dim[0] == 2 && out.type == DType::f32);
  const int64_t rows = rows::row_count(a), length = rows::row_length(a);
  std::vector<double> difference(static_cast<size_t>(rows)), norm(static_cast<size_t>(rows));
  for_rows(rows, length, [&](int64_t row) {
    const Pair v(a, b, row, 0, length);
    double d = 0, n = 0;
    for (int64_t i = 0; i < length; ++i) {
      d += std::fabs(round_to(a.type, v.a[i] - v.b[i]));
      n += std::fabs(v.b[i]);
    }
    difference[row] = d;
    norm[row] = n;
  });
  double sums[2] = {0, 0};
  for (int64_t row = 0; row < rows; ++row) {
    sums[0] += difference[row];
    sums[1] += norm[row];
  }
  store_row(out, 0, 0, 2, sums);
}

void RefOps::check_finite(const View& x, const View& flags) {
  H3_ASSERT(flags.rank == 1 && flags.dim[0] == 1 && flags.type == DType::i32);
  std::vector<uint8_t> bad(static_cast<size_t>(rows::row_count(x)));
  for_rows(rows::row_count(x), rows::row_length(x), [&](int64_t row) {
    std::vector<double> v(static_cast<size_t>(rows::row_length(x)));
    load_row(x, row, 0, rows::row_length(x), v.data());
    for (double e : v) bad[row] |= !std::isfinite(e);
  });
  for (uint8_t b : bad) *host<int32_t>(flags) |= b;
}

}  // namespace h3
