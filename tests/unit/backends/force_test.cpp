// A kernel that is asked for computes every matmul that it can, and right.
#include <gtest/gtest.h>

#include "backends/cpu/matmul.h"
#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"
#include "tensor/tensor.h"

namespace h3 {
namespace {

class Force : public testing::Test {
 protected:
  static constexpr int64_t kRows = 5, kIn = 70, kOut = 37;

  std::unique_ptr<Linear> make(Ops& ops, Compute compute) {
    values_.resize(kIn * kOut);
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50);
    StoredMatrix stored;
    stored.rows = kOut;
    stored.cols = kIn;
    stored.data = std::as_bytes(std::span(values_));
    LinearSpec spec;
    spec.label = "a";
    spec.weight.append(stored, 0, kOut);
    spec.compute = compute;
    return ops.make_linear(std::move(spec));
  }
  // Small whole numbers: exact in every type but int8.
  std::vector<float> product(Ops& ops, const Linear& linear) {
    std::vector<float> x(kRows * kIn);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i % 7) - 3);
    const Tensor in = upload_f32(ops.device(), x.data(), {kRows, kIn}, DType::f32, "x");
    const Tensor out(ops.device(), DType::f32, {kRows, kOut}, "y");
    ops.linear(linear, in, out);
    ops.sync();
    return download_f32(out);
  }

  std::vector<float> values_;
  ThreadPool pool_{2};
  Log log_;
  Context context_{pool_, log_};
};

TEST_F(Force, EveryKernelOfTheHostComputesTheSame) {
  const std::unique_ptr<Ops> oracle = make_backend("ref", context_);
  const std::vector<float> want = product(*oracle, *make(*oracle, Compute::f32));
  int kernels = 0;
  for (const char* level : {"scalar", "avx2", "avx512", "amx"}) {
    if (parse_isa_level(level) > chosen_isa_level()) continue;
    for (const char* type : {"f32", "bf16"}) {
      if (std::string(level) == "amx" && std::string(type) == "f32") continue;
      const std::string name = std::string(type) + "_" + level;
      const std::unique_ptr<Ops> ops = make_backend("cpu,linear=" + name, context_);
      const std::unique_ptr<Linear> linear = make(*ops, *type == 'f' ? Compute::f32 : Compute::bf16);
      EXPECT_EQ(linear->kernel, name);
      EXPECT_EQ(product(*ops, *linear), want) << name;
      ++kernels;
    }
  }
  EXPECT_GE(kernels, 2);
  const std::unique_ptr<Ops> ops = make_backend("cpu,linear=decode_f32", context_);
  const std::unique_ptr<Linear> linear = make(*ops, Compute::f32);
  EXPECT_EQ(linear->kernel, "decode_f32 on f32");
  EXPECT_EQ(product(*ops, *linear), want);
}

TEST_F(Force, WhatCannotRunItIsLeftToTheOthers) {
  const std::unique_ptr<Ops> ops = make_backend("cpu,linear=int8_scalar", context_);
  const std::unique_ptr<Linear> linear = make(*ops, Compute::f32);
  EXPECT_EQ(linear->kernel.rfind("f32_", 0), 0u) << linear->kernel;
  ASSERT_FALSE(linear->refusals.empty());
  EXPECT_EQ(linear->refusals[0], "int8_scalar, which is forced: computes in int8, which was not asked for");
  // Another type is another result, also for the kernel that unpacks anything.
  const MatmulChoice choice = choose_matmul({Compute::bf16, 64, 64, Format::f32}, IsaLevel::scalar, "decode_f32");
  EXPECT_STREQ(choice.kernel->name, "bf16_scalar");
  const MatmulChoice above = choose_matmul({Compute::bf16, 64, 64, Format::f32}, IsaLevel::scalar, "bf16_amx");
  EXPECT_STREQ(above.kernel->name, "bf16_scalar");
  EXPECT_EQ(above.refusals[0], "bf16_amx, which is forced: the instruction set is not available or capped");
}

TEST_F(Force, UnknownNamesListTheKnownOnes) {
  const auto refusal = [&](const char* device) -> std::string {
    try {
      make_backend(device, context_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::usage);
      return error.what();
    }
    return "(accepted)";
  };
  EXPECT_NE(refusal("cpu,linear=f32_scaler").find("did you mean f32_scalar?"), std::string::npos);
  EXPECT_NE(refusal("cpu,conv=f32_scalar").find("\"conv=f32_scalar\" names no operation"), std::string::npos);
  EXPECT_NE(refusal("cpu,linear=").find("names no operation"), std::string::npos);
  EXPECT_NE(refusal("cpu,attention=own").find("cpu has no kernels of attention to choose from"), std::string::npos);
  EXPECT_NE(refusal("ref,linear=f32_scalar").find("ref has no kernels of linear to choose from"), std::string::npos);
}

}  // namespace
}  // namespace h3
