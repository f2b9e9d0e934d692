// The oracle against closed forms and loops written a second way: two paths that agree prove nothing unless one of them
// is known to be right.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "backends/ref/ref_ops.h"
#include "base/compare.h"

namespace h3 {
namespace {

struct Oracle : ::testing::Test {
  ThreadPool pool{2};
  Log log;
  Context context{pool, log};
  std::unique_ptr<Ops> ops = make_ref_ops(context);

  Tensor tensor(const std::vector<float>& values, const std::vector<int64_t>& dims, DType type = DType::f32) {
    return upload_f32(ops->device(), values.data(), dims, type, "test");
  }
  Tensor blank(const std::vector<int64_t>& dims, DType type = DType::f32) {
    return Tensor(ops->device(), type, dims, "test");
  }
};

MatrixSource source_of(const std::vector<float>& w, int64_t rows, int64_t cols) {
  StoredMatrix m;
  m.format = Format::f32;
  m.rows = rows;
  m.cols = cols;
  m.data = std::as_bytes(std::span<const float>(w));
  MatrixSource source;
  source.append(m, 0, rows);
  return source;
}

// Small integers and dyadic fractions: every product and sum is exact, so equality is asked.
std::vector<float> grid(int64_t n, int a, int m, float scale = 1) {
  std::vector<float> v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) v[i] = static_cast<float>((i * a + 3) % m - m / 2) * scale;
  return v;
}

TEST_F(Oracle, LinearIsTheTripleLoop) {
  const int64_t rows = 11, in = 37, out = 19;
  const std::vector<float> x = grid(rows * in, 7, 13), w = grid(out * in, 5, 11), bias = grid(out, 3, 7);
  const std::unique_ptr<Linear> linear = ops->make_linear({"l", source_of(w, out, in), bias, Compute::f32, rows});
  const Tensor xs = tensor(x, {rows, in}), ys = blank({rows, out});
  ops->linear(*linear, xs, ys);
  const std::vector<float> y = download_f32(ys);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      float sum = bias[o];
      for (int64_t k = 0; k < in; ++k) sum += x[r * in + k] * w[o * in + k];
      ASSERT_EQ(y[r * out + o], sum) << r << ' ' << o;
    }
  }
}

TEST_F(Oracle, Int8LinearOfGridValuesIsExact) {
  // absmax 127 on every row makes both scales 1: the integers are the values.
  const int64_t in = 64, out = 9;
  std::vector<float> x = grid(3 * in, 7, 200), w = grid(out * in, 5, 180);
  for (int64_t r = 0; r < 3; ++r) x[r * in] = 127;
  for (int64_t r = 0; r < out; ++r) w[r * in] = -127;
  const std::unique_ptr<Linear> linear = ops->make_linear({"l", source_of(w, out, in), {}, Compute::int8, 3});
  const Tensor xs = tensor(x, {3, in}), ys = blank({3, out});
  ops->linear(*linear, xs, ys);
  const std::vector<float> y = download_f32(ys);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      float sum = 0;
      for (int64_t k = 0; k < in; ++k) sum += x[r * in + k] * w[o * in + k];
      ASSERT_EQ(y[r * out + o], sum);
    }
  }
}

}  // namespace
}  // namespace h3
