// The oracle against closed forms and loops written a second way: two paths that agree prove nothing unless one of them
// is known to be right.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backends/ref/ref_ops.h"

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

TEST_F(Oracle, LinearRoundsOperandsAndResultOnce) {
  // 1 + 2^-9 is no bf16: compute bf16 drops it, compute f32 keeps it. The sum 256 + 1.5 rounds to bf16 once, to even.
  const std::vector<float> w = {1, 1, 1 + 0x1p-9f, 0};
  const Tensor x = tensor({256, 1.5f}, {1, 2}), y = blank({1, 2}, DType::bf16), z = blank({1, 2});
  const std::unique_ptr<Linear> narrow = ops->make_linear({"n", source_of(w, 2, 2), {}, Compute::bf16, 1});
  const std::unique_ptr<Linear> full = ops->make_linear({"f", source_of(w, 2, 2), {}, Compute::f32, 1});
  ops->linear(*narrow, x, y);
  EXPECT_EQ(download_f32(y), (std::vector<float>{258, 256}));
  ops->linear(*full, x, z);
  EXPECT_EQ(download_f32(z), (std::vector<float>{257.5f, 256.5f}));
}

TEST_F(Oracle, Conv3dIsTheSumOverTaps) {
  ConvSpec spec;
  spec.label = "c";
  spec.kind = ConvKind::conv3d;
  spec.in = 2, spec.out = 3;
  const int kernel[3] = {3, 3, 2}, stride[3] = {1, 2, 1}, before[3] = {2, 1, 0}, after[3] = {0, 1, 1};
  for (int i = 0; i < 3; ++i) {
    spec.kernel[i] = kernel[i], spec.stride[i] = stride[i];
    spec.pad_before[i] = before[i], spec.pad_after[i] = after[i];
  }
  spec.spatial_pad = Pad::reflect;
  const std::vector<float> w = grid(3 * 2 * 18, 5, 9), bias = {1, -2, 3};
  spec.weight = w;
  spec.bias = bias;
  const int64_t T = 2, H = 5, W = 4, OH = 3, OW = 4;
  const std::vector<float> x = grid(2 * T * H * W, 7, 11);
  const std::unique_ptr<Conv> conv = ops->make_conv(spec);
  const Tensor xs = tensor(x, {2, T, H, W}), ys = blank({3, T, OH, OW});
  ops->conv(*conv, xs, ys);
  const std::vector<float> y = download_f32(ys);
  const auto mirror = [](int64_t i, int64_t n) { return i < 0 ? -i : i >= n ? 2 * n - 2 - i : i; };
  for (int64_t o = 0; o < 3; ++o)
    for (int64_t t = 0; t < T; ++t)
      for (int64_t h = 0; h < OH; ++h)
        for (int64_t v = 0; v < OW; ++v) {
          float sum = bias[o];
          for (int64_t tap = 0; tap < 2 * 18; ++tap) {
            const int64_t c = tap / 18, kt = tap / 6 % 3, kh = tap / 2 % 3, kw = tap % 2;
            const int64_t at = t + kt - 2;
            if (at < 0) continue;  // zeros in front
            sum += w[o * 36 + tap] * x[((c * T + at) * H + mirror(2 * h + kh - 1, H)) * W + mirror(v + kw, W)];
          }
          ASSERT_EQ(y[((o * T + t) * OH + h) * OW + v], sum) << o << t << h << v;
        }
}

TEST_F(Oracle, TransposedConvIsTheAdjointOfTheStridedOne) {
  // <conv(x), y> = <x, transposed(y)> for equal weights: conv1d reads [O, I, k], the transposed one [I, O, k].
  const int64_t in = 3, out = 4, n = 20, k = 4, stride = 2, pad = 1, m = (n + 2 * pad - k) / stride + 1;
  ConvSpec down;
  down.label = "down";
  down.in = in, down.out = out;
  down.kernel[2] = k, down.stride[2] = stride, down.pad_before[2] = down.pad_after[2] = pad;
  down.weight = grid(in * out * k, 5, 9);
  ConvSpec up = down;
  up.kind = ConvKind::transposed1d;
  up.in = out, up.out = in;
  const std::unique_ptr<Conv> f = ops->make_conv(down), g = ops->make_conv(up);
  const std::vector<float> x = grid(in * n, 7, 13), y = grid(out * m, 3, 11);
  const Tensor xs = tensor(x, {in, n}), ys = tensor(y, {out, m}), fx = blank({out, m}), gy = blank({in, n});
  ops->conv(*f, xs, fx);
  ops->conv(*g, ys, gy);
  const std::vector<float> a = download_f32(fx), b = download_f32(gy);
  double left = 0, right = 0;
  for (size_t i = 0; i < a.size(); ++i) left += static_cast<double>(a[i]) * static_cast<double>(y[i]);
  for (size_t i = 0; i < b.size(); ++i) right += static_cast<double>(b[i]) * static_cast<double>(x[i]);
  EXPECT_EQ(left, right);
  EXPECT_NE(left, 0);
}

TEST_F(Oracle, AttentionOfKnownWeights) {
  // Scores ln 1, ln 2, ln 5 in any order weigh the values by 1/8, 2/8, 5/8.
  const float q[] = {1, 0};
  const std::vector<float> k = {std::log(1.0f), 9, std::log(2.0f), 9, std::log(5.0f), 9};
  const std::vector<float> v = {8, 80, 16, 0, 24, 8};
  const Tensor qs = tensor({q[0], q[1]}, {1, 1, 2}), ks = tensor(k, {3, 1, 2}), vs = tensor(v, {3, 1, 2});
  const Tensor out = blank({1, 1, 2});
  ops->attention({qs, ks, vs, out, 1.0f, false});
  const std::vector<float> y = download_f32(out);
  EXPECT_NEAR(y[0], 1.0 + 4 + 15, 2e-6);
  EXPECT_NEAR(y[1], 10.0 + 0 + 5, 2e-6);
}

TEST_F(Oracle, CausalGroupedAttention) {
  // Equal scores: each query averages the values up to itself; query heads 0, 1 read head 0, 2 and 3 read head 1.
  const int64_t rows = 5;
  std::vector<float> v(static_cast<size_t>(rows * 2));
  for (int64_t i = 0; i < rows; ++i) v[2 * i] = static_cast<float>(i), v[2 * i + 1] = static_cast<float>(10 * i);
  const Tensor q = tensor(std::vector<float>(rows * 4, 1.0f), {rows, 4, 1});
  const Tensor k = tensor(std::vector<float>(rows * 2, 3.0f), {rows, 2, 1}), vs = tensor(v, {rows, 2, 1});
  const Tensor out = blank({rows, 4, 1});
  ops->attention({q, k, vs, out, 0.5f, true});
  const std::vector<float> y = download_f32(out);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t h = 0; h < 4; ++h) EXPECT_FLOAT_EQ(y[i * 4 + h], static_cast<float>(i) * (h < 2 ? 0.5f : 5.0f));
  }
}

TEST_F(Oracle, AttentionRoundsItsWeightsToT) {
  // Weights 1/3 and 2/3 in bf16 are 0.333984375 and 0.66796875; times 4096 and 0 that is 1368, and 1365.33 unrounded.
  const Tensor q = tensor({1}, {1, 1, 1}, DType::f32), k = tensor({0, std::log(2.0f)}, {2, 1, 1});
  const Tensor v = tensor({4096, 0}, {2, 1, 1}, DType::bf16), out = blank({1, 1, 1}), exact = blank({1, 1, 1});
  ops->attention({q, k, v, out, 1.0f, false});
  EXPECT_EQ(download_f32(out)[0], 1368.0f);
  const Tensor wide = tensor({4096, 0}, {2, 1, 1});
  ops->attention({q, k, wide, exact, 1.0f, false});
  EXPECT_NEAR(download_f32(exact)[0], 4096.0 / 3, 2e-4);
}

TEST_F(Oracle, NormsOfKnownRows) {
  const Tensor x = tensor({3, -4, 0, 0}, {1, 4}), w = tensor({1, 2, 3, 4}, {4}), b = tensor({0, 0, 1, 0}, {4});
  const Tensor y = blank({1, 4});
  ops->rms_norm(x, w, 0, NormRounding::once, y);  // rms 2.5
  EXPECT_EQ(download_f32(y), (std::vector<float>{1.2f, -3.2f, 0, 0}));
  const Tensor z = tensor({1, 3, 1, 3}, {1, 4});
  ops->layer_norm(z, w, b, 0, y);  // mean 2, deviation 1
  EXPECT_EQ(download_f32(y), (std::vector<float>{-1, 2, -2, 4}));
}

TEST_F(Oracle, TwiceRoundsBeforeTheWeight) {
  // x * rsqrt = 3 / sqrt(5) = 1.341640...; as bf16 1.34375; times the weight 3: 4.03125 exactly, and 4.0249 unrounded.
  const Tensor x = tensor({3, 1}, {1, 2}, DType::bf16), w = tensor({3, 3}, {2}), y = blank({1, 2}, DType::bf16);
  ops->rms_norm(x, w, 0, NormRounding::twice, y);
  EXPECT_EQ(download_f32(y)[0], 4.03125f);
  const Tensor wide = blank({1, 2});
  ops->rms_norm(x, w, 0, NormRounding::once, wide);
  EXPECT_NEAR(download_f32(wide)[0], 9 / std::sqrt(5.0), 1e-6);
}

TEST_F(Oracle, ModulationRoundsThreeTimes) {
  // h = 1 (x = w = 1, rms 1). scale 2^-8: 1 + scale = 1.00390625 is halfway between two bf16 values and goes to 1.
  const Tensor x = tensor({1, 1}, {1, 2}, DType::bf16), h = blank({1, 2}, DType::bf16);
  const Tensor table = tensor({0x1p-8f, 3 * 0x1p-8f, 0.5f, 256}, {2, 2}, DType::bf16);
  const Tensor ids = upload_i32(ops->device(), {0}, "ids"), other = upload_i32(ops->device(), {1}, "ids");
  const View scale = table.view, shift = table.view;
  ops->norm_modulate(x, View{}, 0, {shift.slice(0, 1, 1), scale.slice(0, 0, 1), ids}, h);
  // 1.01171875 lies halfway, to 1.015625; + 0.5 exactly 1.515625; + 256 -> 257.015625 rounds to 256 or 258: nearer 258.
  EXPECT_EQ(download_f32(h), (std::vector<float>{1.5f, 258.0f}));
  ops->norm_modulate(x, View{}, 0, {shift, scale, other}, h);
  EXPECT_EQ(download_f32(h), (std::vector<float>{2.0f, 512.0f}));  // 1 * 1.5 + 0.5; 1 * 257 -> 256, + 256
}

TEST_F(Oracle, RopeTurnsAQuarter) {
  // cos 0, sin 1: (a, b) -> (-b, a) for the pairs, the rest passes.
  const Tensor x = tensor({1, 2, 3, 4, 5}, {1, 1, 5}), c = tensor({0, 0}, {1, 2}), s = tensor({1, 1}, {1, 2});
  ops->head_norm_rope(x, {}, {c, s, RopeRounding::per_op});
  EXPECT_EQ(download_f32(x), (std::vector<float>{-3, -4, 1, 2, 5}));
}

TEST_F(Oracle, PointwiseValues) {
  const std::vector<float> x = {0, 1, -1, 20, -200};
  const Tensor xs = tensor(x, {5}), y = blank({5});
  ops->silu(xs, y);
  std::vector<float> v = download_f32(y);
  EXPECT_EQ(v[0], 0);
  EXPECT_NEAR(v[1], 0.731058578630005, 6e-8);
  EXPECT_NEAR(v[2], -0.268941421369995, 3e-8);
  EXPECT_NEAR(v[3], 20, 1e-6);
  EXPECT_NEAR(v[4], 0, 1e-30);
  ops->gelu(xs, Ops::Gelu::erf, y);
  v = download_f32(y);
  EXPECT_NEAR(v[1], 0.841344746068543, 6e-8);
  EXPECT_NEAR(v[2], -0.158655253931457, 3e-8);
  ops->gelu(xs, Ops::Gelu::tanh, y);
  v = download_f32(y);
  EXPECT_NEAR(v[1], 0.841191990608276, 6e-8);
  EXPECT_EQ(v[4], 0);
}

TEST_F(Oracle, GroupNormIsPerFrame) {
  // Frame 0 holds 1 and 3, frame 1 holds 10 and 30: both become -1 and 1, then silu.
  const Tensor x = tensor({1, 1, 10, 10, 3, 3, 30, 30}, {2, 2, 1, 2}), y = blank({2, 2, 1, 2});
  const Tensor w = tensor({1, 1}, {2}), b = tensor({0, 0}, {2});
  ops->group_norm_silu(x, 1, w, b, 0, y);
  const std::vector<float> v = download_f32(y);
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(v[i], i < 4 ? -0.2689414 : 0.7310586, 1e-6);
}

TEST_F(Oracle, AaSnakeOfUnitFiltersIsSnakeOnHeldSamples) {
  // f = taps 5 and 6 of 1/2: up[2m] = x[m], up[2m + 1] = x[m]; g = tap 5: every second sample comes back.
  std::vector<float> f(12), g(12);
  f[5] = f[6] = 0.5f;
  g[5] = 1;
  const std::vector<float> x = {0.5f, -1, 2, 0.25f};
  const Tensor xs = tensor(x, {1, 4}), a = tensor({2}, {1}), inv = tensor({0.5f}, {1}), y = blank({1, 4}),
               z = blank({1, 4});
  ops->aa_snake(xs, a, inv, tensor(f, {12}), tensor(g, {12}), y);
  ops->snake(xs, a, inv, z);
  const std::vector<float> p = download_f32(y), q = download_f32(z);
  EXPECT_EQ(p, q);
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(q[i], x[i] + 0.5 * std::pow(std::sin(2.0 * x[i]), 2), 1e-7);
}

TEST_F(Oracle, AaSnakeIsThePaddedFilterPair) {
  // The unfolded form of spec vae 11, with random-looking filters and no activation (inv = 0).
  const std::vector<float> f = grid(12, 5, 7, 0.125f), g = grid(12, 3, 11, 0.125f), x = grid(9, 7, 13);
  const int64_t n = 9;
  const Tensor y = blank({1, n});
  ops->aa_snake(tensor(x, {1, n}), tensor({1}, {1}), tensor({0}, {1}), tensor(f, {12}), tensor(g, {12}), y);
  std::vector<double> padded, up(static_cast<size_t>(2 * (n + 10) + 10)), wide;
  for (int64_t i = -5; i < n + 5; ++i) padded.push_back(static_cast<double>(x[std::clamp<int64_t>(i, 0, n - 1)]));
  for (size_t t = 0; t < padded.size(); ++t) {
    for (size_t j = 0; j < 12; ++j) up[2 * t + j] += 2 * padded[t] * static_cast<double>(f[j]);
  }
  for (int64_t i = -5; i < 2 * n + 6; ++i) wide.push_back(up[15 + std::clamp<int64_t>(i, 0, 2 * n - 1)]);
  std::vector<float> want;
  for (int64_t m = 0; m < n; ++m) {
    double sum = 0;
    for (int64_t k = 0; k < 12; ++k) sum += wide[2 * m + k] * static_cast<double>(g[k]);
    want.push_back(static_cast<float>(sum));
  }
  EXPECT_EQ(download_f32(y), want);
}

TEST_F(Oracle, RowsMoveAndAdd) {
  const Tensor x = tensor({1, 2, 3, 4, 5, 6}, {3, 2}), y = blank({2, 2}), z = tensor(std::vector<float>(8, 10), {4, 2});
  ops->gather_rows(x, upload_i32(ops->device(), {2, 0}, "ids"), y);
  EXPECT_EQ(download_f32(y), (std::vector<float>{5, 6, 1, 2}));
  const Tensor ids = upload_i32(ops->device(), {3, 1}, "ids");
  ops->scatter_add_rows(y, ids, z);
  EXPECT_EQ(download_f32(z), (std::vector<float>{10, 10, 11, 12, 10, 10, 15, 16}));
  ops->scatter_rows(y, ids, z);
  EXPECT_EQ(download_f32(z), (std::vector<float>{10, 10, 1, 2, 10, 10, 5, 6}));
}

TEST_F(Oracle, Reductions) {
  const Tensor a = tensor({1, 2, 3, 4}, {2, 2}), b = tensor({1, 1, 1, 2}, {2, 2}), out = blank({2});
  ops->l1_pair(a, b, out);
  EXPECT_EQ(download_f32(out), (std::vector<float>{5, 5}));
  const Tensor flags = upload_i32(ops->device(), {2}, "flags");
  ops->check_finite(a, flags);
  EXPECT_EQ(host<int32_t>(flags.view)[0], 2);
  host<float>(a.view)[3] = -INFINITY;
  ops->check_finite(a, flags);
  EXPECT_EQ(host<int32_t>(flags.view)[0], 3);
}

TEST_F(Oracle, LincombRoundsBothProducts) {
  const float third = 1.0f / 3, x = 1.1f, y = -0.7f;
  const Tensor out = blank({1});
  ops->lincomb(tensor({third, 0.9f}, {2}), tensor({x}, {1}), tensor({y}, {1}), out);
  const float left = third * x, right = 0.9f * y;
  EXPECT_EQ(download_f32(out)[0], left + right);
}

// q, k, v [S, 1, D] of smooth random values.
struct SparseOperands {
  int64_t rows, d;
  std::vector<float> q, k, v;
  SparseOperands(int64_t rows_, int64_t d_) : rows(rows_), d(d_) {
    const auto draw = [&](uint64_t seed) {
      std::vector<float> out;
      uint64_t state = seed;
      for (int64_t i = 0; i < rows * d; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        out.push_back(static_cast<float>(state >> 40) / 8388608.0f - 1.0f);
      }
      return out;
    };
    q = draw(1);
    k = draw(2);
    v = draw(3);
  }
};

TEST_F(Oracle, SparseAttentionWithEveryBlockExactIsDenseAttention) {
  const SparseOperands o(300, 16);
  const Tensor q = tensor(o.q, {300, 1, 16}), k = tensor(o.k, {300, 1, 16}), v = tensor(o.v, {300, 1, 16});
  const Tensor dense = blank({300, 1, 16}), sparse = blank({300, 1, 16});
  ops->attention({q, k, v, dense, 0.25f, false});
  SparseAttentionArgs args;
  args.q = q;
  args.k = k;
  args.v = v;
  args.out = sparse;
  args.scale = 0.25f;
  args.tau = -1000;
  const Tensor count = upload_i32(ops->device(), {0}, "count");
  args.exact_blocks = count;
  ops->sparse_attention(args);
  const std::vector<float> want = download_f32(dense), got = download_f32(sparse);
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6) << i;
  EXPECT_EQ(host<int32_t>(count.view)[0], 25);
}

// tau = +1000 leaves the band exact only; five blocks, so that blocks 0 and 2 .. 4 differ. The formula is written out
// here for a query of block 0: blocks 0 and 1 key by key, 2, 3 and 4 (of 44 rows) through their summaries.
TEST_F(Oracle, SparseAttentionApproximatesByMeanKeySumOfValuesAndLength) {
  constexpr int64_t kS = 300, kD = 16, kQuery = 5;
  const SparseOperands o(kS, kD);
  const Tensor out = blank({kS, 1, kD});
  SparseAttentionArgs args;
  const Tensor q = tensor(o.q, {kS, 1, kD}), k = tensor(o.k, {kS, 1, kD}), v = tensor(o.v, {kS, 1, kD});
  args.q = q;
  args.k = k;
  args.v = v;
  args.out = out;
  args.scale = 0.25f;
  args.tau = 1000;
  ops->sparse_attention(args);
  double total = 0, sum[kD] = {};
  const auto score = [&](const std::vector<double>& key) {
    double s = 0;
    for (int64_t c = 0; c < kD; ++c) s += static_cast<double>(o.q[kQuery * kD + c]) * key[static_cast<size_t>(c)];
    return std::exp(0.25 * s);
  };
  for (int64_t block = 0; block < 5; ++block) {
    const int64_t first = block * 64, last = std::min(kS, first + 64);
    std::vector<double> mean(kD), values(kD);
    for (int64_t r = first; r < last; ++r) {
      std::vector<double> key(kD);
      for (int64_t c = 0; c < kD; ++c) {
        key[c] = static_cast<double>(o.k[r * kD + c]);
        // A block's summary key is stored as f32.
        mean[c] += key[c] / static_cast<double>(last - first);
        values[c] += static_cast<double>(o.v[r * kD + c]);
      }
      if (block > 1) continue;
      total += score(key);
      for (int64_t c = 0; c < kD; ++c) sum[c] += score(key) * static_cast<double>(o.v[r * kD + c]);
    }
    if (block <= 1) continue;
    total += score(mean) * static_cast<double>(last - first);
    for (int64_t c = 0; c < kD; ++c) sum[c] += score(mean) * values[c];
  }
  const std::vector<float> got = download_f32(out);
  for (int64_t c = 0; c < kD; ++c) EXPECT_NEAR(got[kQuery * kD + c], sum[c] / total, 2e-6) << c;
}

}  // namespace
}  // namespace h3
