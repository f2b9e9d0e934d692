// Offsets beyond 2^31 elements. A release block at 110 000 rows has 2.4e9 values in its QKV buffer; rows are
// independent in every operation here, so the last rows of a wide call must equal the same rows alone, to the bit.
// Cards only: a host would take minutes.
#include <gtest/gtest.h>

#include <cmath>

#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"
#include "codec/noise.h"
#include "ops/ops.h"

namespace h3 {
namespace {

constexpr int64_t kRows = 110'000, kTail = 40, kWide = 21504, kHidden = 5376, kFfn = 14336, kHead = 128;

std::vector<std::string> cards() {
  ThreadPool pool(1);
  Log log;
  Context context{pool, log};
  std::vector<std::string> names;
  for (const BackendInfo& info : list_backends(context)) {
    if (info.refused.empty() && info.name != "cpu" && info.name != "ref") names.push_back(info.name);
  }
  return names;
}

class WideIndex : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cards().empty()) GTEST_SKIP() << "no card";
    ops_ = make_backend(cards().front(), context_);
  }

  // [rows, columns] bf16 whose values repeat every 997 rows, so that the tail is not like the head. Filled by a matmul
  // of a narrow input: also a wide call.
  Tensor values(int64_t rows, int64_t columns, uint64_t seed) {
    NoiseWeights noise;
    noise.amplitude = 0.5f;
    noise.seed = seed;
    StoredMatrix stored;
    stored.format = Format::noise;
    stored.rows = columns;
    stored.cols = 16;
    stored.data = std::as_bytes(std::span(&noise, 1));
    LinearSpec spec;
    spec.label = "test";
    spec.weight.append(stored, 0, columns);
    spec.compute = Compute::bf16;
    const std::unique_ptr<Linear> linear = ops_->make_linear(std::move(spec));
    std::vector<float> in(static_cast<size_t>(rows * 16));
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(std::sin(0.37 * static_cast<double>(i % 15952)));
    const Tensor x = upload_f32(ops_->device(), in.data(), {rows, 16}, DType::bf16, "test");
    Tensor out(ops_->device(), DType::bf16, {rows, columns}, "test");
    ops_->linear(*linear, x, out);
    ops_->sync();
    return out;
  }
  static View tail(const View& view) { return view.slice(0, view.dim[0] - kTail, kTail); }
  Tensor copy_of(const View& rows) {
    Tensor out(ops_->device(), rows.type, std::vector<int64_t>(rows.dim.begin(), rows.dim.begin() + rows.rank), "test");
    ops_->copy(rows, out);
    return out;
  }
  Tensor parameter(int64_t rows, int64_t columns, DType type) {
    std::vector<float> v(static_cast<size_t>(rows * columns));
    for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(std::cos(0.11 * static_cast<double>(i % 9973)));
    return upload_f32(ops_->device(), v.data(), {rows, columns}, type, "test");
  }
  Tensor ids(int64_t rows) {
    std::vector<int32_t> v(static_cast<size_t>(rows));
    for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<int32_t>(i * 7 % 5);
    return upload_i32(ops_->device(), v, "test");
  }
  void expect_equal(const View& wide, const View& alone, const char* what) {
    ops_->sync();
    EXPECT_EQ(download_f32(wide), download_f32(alone)) << what;
  }

  ThreadPool pool_{4};
  Log log_;
  Context context_{pool_, log_};
  std::unique_ptr<Ops> ops_;
};

TEST_F(WideIndex, HeadsAndMatmuls) {
  const Tensor qkv = values(kRows, kWide, 1);  // 2.37e9 elements
  const Tensor cos = parameter(kRows, 48, DType::f32), sin = parameter(kRows, 48, DType::f32);
  const Tensor weight = parameter(1, kHead, DType::f32);
  const Tensor alone = copy_of(tail(qkv));
  const Ops::HeadNorm norm{true, weight.view.select(0, 0), 1e-6f, NormRounding::once};
  const Rope rope{cos, sin, RopeRounding::per_op}, last{tail(cos), tail(sin), RopeRounding::per_op};
  const int64_t inner = kWide / 3;
  ops_->head_norm_rope(qkv.view.slice(1, inner, inner).split(1, kHead), norm, rope);
  ops_->head_norm_rope(alone.view.slice(1, inner, inner).split(1, kHead), norm, last);
  expect_equal(tail(qkv), alone, "head_norm_rope");

  // The last queries see every key.
  const auto heads = [&](int64_t part, const View& rows) {
    return rows.slice(1, part * inner, inner).split(1, kHead).slice(1, 0, 2);
  };
  AttentionArgs args;
  args.q = heads(0, tail(qkv));
  args.k = heads(1, qkv);
  args.v = heads(2, qkv);
  const Tensor few(ops_->device(), DType::bf16, {kTail, 2, kHead}, "test");
  const Tensor all(ops_->device(), DType::bf16, {kRows, 2, kHead}, "test");
  args.out = few;
  args.scale = 0.0884f;
  ops_->attention(args);
  args.q = heads(0, qkv);
  args.out = all;
  ops_->attention(args);
  ops_->sync();
  const std::vector<float> a = download_f32(tail(all)), b = download_f32(few);
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  EXPECT_LT(std::sqrt(difference / size), 6e-3);
}

TEST_F(WideIndex, RowOperations) {
  const Tensor x = values(kRows, kWide, 2), y = values(kRows, kWide, 3);  // the norms take any width
  Tensor h(ops_->device(), DType::bf16, {kRows, kWide}, "test");
  const Tensor table = parameter(5, kWide, DType::bf16), w = parameter(1, kWide, DType::f32);
  const Tensor rows = ids(kRows);
  const View norm = w.view.select(0, 0), last = rows.view.slice(0, kRows - kTail, kTail);
  const Tensor x1 = copy_of(tail(x)), y1 = copy_of(tail(y));
  const Tensor h1(ops_->device(), DType::bf16, {kTail, kWide}, "test");
  ops_->gate_norm(x, y, {table, rows}, norm, 1e-5f, {table, table, rows}, h);
  ops_->gate_norm(x1, y1, {table, last}, norm, 1e-5f, {table, table, last}, h1);
  expect_equal(tail(x), x1, "gate_norm, the stream");
  expect_equal(tail(h), h1, "gate_norm, the branch");
  ops_->norm_modulate(x, norm, 1e-5f, {table, table, rows}, h);
  ops_->norm_modulate(x1, norm, 1e-5f, {table, table, last}, h1);
  expect_equal(tail(h), h1, "norm_modulate");
  ops_->gated_add(x, y, {table, rows});
  ops_->gated_add(x1, y1, {table, last});
  expect_equal(tail(x), x1, "gated_add");
  ops_->rms_norm(x, norm, 1e-5f, NormRounding::once, h);
  ops_->rms_norm(x1, norm, 1e-5f, NormRounding::once, h1);
  expect_equal(tail(h), h1, "rms_norm");
  ops_->silu(x, h);
  ops_->silu(x1, h1);
  expect_equal(tail(h), h1, "silu");
  ops_->add(x, y, h);
  ops_->add(x1, y1, h1);
  expect_equal(tail(h), h1, "add");
  ops_->gather_rows(x, last, h1);  // ids 0 .. 4 of a wide source
  expect_equal(h1.view.slice(0, 0, 1), copy_of(x.view.slice(0, (kRows - kTail) * 7 % 5, 1)).view, "gather_rows");
}

TEST_F(WideIndex, HiddenLayerOfTheMlp) {
  const Tensor both = values(kRows, 2 * kFfn, 4);  // 3.15e9 elements
  const Tensor alone = copy_of(tail(both));
  const auto halves = [](const View& v) { return std::pair(v.slice(1, 0, kFfn), v.slice(1, kFfn, kFfn)); };
  const auto [gate, value] = halves(both);
  const auto [gate1, value1] = halves(alone);
  ops_->swiglu(gate, value, gate);
  ops_->swiglu(gate1, value1, gate1);
  expect_equal(tail(both), alone, "swiglu");
}

}  // namespace
}  // namespace h3
