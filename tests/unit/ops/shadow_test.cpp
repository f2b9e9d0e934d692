#include "ops/shadow.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "backends/ref/ref_ops.h"
#include "base/error.h"
#include "codec/scalar.h"

namespace h3 {
namespace {

enum class Fault { none, third_silu, linear_nan, add_behind_row, gate_norm_skips_a_rounding, scratch_behind_row };

// The oracle with one fault.
class Faulty : public RefOps {
 public:
  using RefOps::RefOps;
  Fault fault = Fault::none;

  void silu(const View& x, const View& y) override {
    RefOps::silu(x, y);
    if (fault == Fault::third_silu && ++silus_ == 3) host<float>(y)[7] *= 1.00001f;
  }
  void linear(const Linear& weight, const View& x, const View& y) override {
    RefOps::linear(weight, x, y);
    if (fault == Fault::linear_nan) host<float>(y)[y.stride[0] + 1] = std::nanf("");
  }
  void add(const View& x, const View& y, const View& out) override {
    RefOps::add(x, y, out);
    if (fault == Fault::add_behind_row) host<float>(out)[out.dim[1]] = 1;
  }
  void linear_swiglu(const Linear& weight, const View& x, const View& wide, const View& out) override {
    RefOps::linear_swiglu(weight, x, wide, out);
    if (fault == Fault::scratch_behind_row) host<float>(wide)[wide.dim[1]] += 1;
  }
  void linear_scaled_add(const Linear& weight, const View& h, const View& y, const View& scale,
                         const View& x) override {
    RefOps::linear_scaled_add(weight, h, y, scale, x);
    if (fault == Fault::scratch_behind_row) host<float>(y)[y.dim[1]] += 1;
  }
  void gate_norm(const View& x, const View& y, const Gate& gate, const View& w, float eps, const Modulation& mod,
                 const View& h) override {
    if (fault != Fault::gate_norm_skips_a_rounding) return RefOps::gate_norm(x, y, gate, w, eps, mod, h);
    for (int64_t i = 0; i < x.dim[1]; ++i) {  // one row; the product is not rounded before the sum
      uint16_t* p = host<uint16_t>(x);
      const float product = bf16_to_f32(host<uint16_t>(gate.gate)[i]) * bf16_to_f32(host<uint16_t>(y)[i]);
      p[i] = f32_to_bf16(bf16_to_f32(p[i]) + product);
    }
    norm_modulate(x, w, eps, mod, h);
  }

 private:
  int silus_ = 0;
};

struct ShadowTest : ::testing::Test {
  ThreadPool pool{2};
  Log log;
  Context context{pool, log};
  Faulty* faulty = nullptr;
  std::unique_ptr<Ops> ops;

  void SetUp() override {
    auto fast = std::make_unique<Faulty>(context);
    faulty = fast.get();
    ops = make_shadow(std::move(fast), make_ref_ops(context));
  }
  Tensor counted(const std::vector<int64_t>& dims, DType type = DType::f32) {
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    std::vector<float> v(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) v[i] = static_cast<float>(i * 7 % 31) / 7 - 2;
    return upload_f32(ops->device(), v.data(), dims, type, "test");
  }
  std::unique_ptr<Linear> linear(int64_t out, int64_t in) {
    weight.assign(static_cast<size_t>(out * in), 0.25f);
    StoredMatrix stored{.format = Format::f32, .rows = out, .cols = in};
    stored.data = std::as_bytes(std::span<const float>(weight));
    LinearSpec spec;
    spec.label = "dit.blocks.3.mlp.fc1";
    spec.weight.append(stored, 0, out);
    return ops->make_linear(std::move(spec));
  }
  std::vector<float> weight;
};

std::string failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::numeric);
    return error.what();
  }
  return "none";
}

void expect_has(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST_F(ShadowTest, SoundWorkPasses) {
  const Tensor x = counted({4, 8}), y = counted({4, 8});
  const std::unique_ptr<Linear> fc = linear(8, 8);
  EXPECT_EQ(fc->label, "dit.blocks.3.mlp.fc1");
  EXPECT_EQ(fc->out, 8);
  ops->linear(*fc, x, y);
  ops->silu(y, y);
  ops->add(x, y, x);
  EXPECT_STREQ(ops->name(), "shadow(ref)");
  EXPECT_EQ(&ops->device(), &faulty->device());
}

TEST_F(ShadowTest, NamesTheCallAndTheElement) {
  faulty->fault = Fault::third_silu;
  const Tensor x = counted({4, 5}), y = counted({4, 5});
  const std::unique_ptr<Linear> fc = linear(5, 5);
  ops->linear(*fc, x, y);
  ops->silu(x, y);
  ops->silu(x, y);
  expect_has(failure_of([&] { ops->silu(x, y); }),
             {"call 4", "silu", "after 'dit.blocks.3.mlp.fc1'", "[1, 2]", "[4, 5]", "f32", "1 of 20", "on ref"});
}

TEST_F(ShadowTest, NaNInALinearIsNamedByItsLabel) {
  faulty->fault = Fault::linear_nan;
  const Tensor x = counted({4, 5}), y = counted({4, 3});
  const std::unique_ptr<Linear> fc = linear(3, 5);
  expect_has(failure_of([&] { ops->linear(*fc, x, y); }),
             {"call 1", "linear 'dit.blocks.3.mlp.fc1'", "f32_ref", "[1, 1]", "nan"});
}

TEST_F(ShadowTest, StrayWritesAreFound) {
  faulty->fault = Fault::add_behind_row;
  const Tensor x = counted({4, 5}), wide = counted({4, 9});
  expect_has(failure_of([&] { ops->add(x, x, wide.view.slice(1, 2, 5)); }),
             {"add", "strided output", "not part of it"});
}

// What lies between a linear and what follows it may hold anything, its gaps belong to others.
TEST_F(ShadowTest, StrayWritesBesideScratchAreFound) {
  const Tensor x = counted({4, 5}), room = counted({4, 9}), out = counted({4, 3}), stream = counted({4, 6});
  const Tensor scale = counted({6});
  const View wide = room.view.slice(1, 2, 6);
  const std::unique_ptr<Linear> fc = linear(6, 5);
  const std::function<void()> calls[] = {[&] { ops->linear_swiglu(*fc, x, wide, out); },
                                         [&] { ops->linear_swiglu(*fc, x, wide, wide.slice(1, 0, 3)); },
                                         [&] { ops->linear_scaled_add(*fc, x, wide, scale, stream); }};
  for (const std::function<void()>& call : calls) {
    faulty->fault = Fault::none;
    EXPECT_EQ(failure_of(call), "none");
    faulty->fault = Fault::scratch_behind_row;
    expect_has(failure_of(call), {"'dit.blocks.3.mlp.fc1'", "strided output", "not part of it"});
  }
}

TEST_F(ShadowTest, AFusedOpMustRoundAsItsComposition) {
  const Tensor x = counted({1, 64}, DType::bf16), y = counted({1, 64}, DType::bf16), h = counted({1, 64}, DType::bf16);
  const Tensor table = counted({1, 64}, DType::bf16), ids = upload_i32(ops->device(), {0}, "ids");
  const auto call = [&] { ops->gate_norm(x, y, {table, ids}, View{}, 1e-5f, {table, table, ids}, h); };
  call();
  faulty->fault = Fault::gate_norm_skips_a_rounding;
  expect_has(failure_of(call), {"gate_norm", "output 0"});
}

TEST_F(ShadowTest, OneErrorDoesNotSpread) {  // each call starts from what the fast back end has
  faulty->fault = Fault::third_silu;
  const Tensor x = counted({4, 5});
  ops->silu(x, x);
  ops->silu(x, x);
  EXPECT_NE(failure_of([&] { ops->silu(x, x); }), "none");
  ops->silu(x, x);
  ops->add(x, x, x);
}

TEST_F(ShadowTest, EmptyCallsPass) {
  const Tensor x = counted({0, 5}), y = counted({0, 3});
  const std::unique_ptr<Linear> fc = linear(3, 5);
  ops->linear(*fc, x, y);
  ops->silu(x, x);
}

}  // namespace
}  // namespace h3
