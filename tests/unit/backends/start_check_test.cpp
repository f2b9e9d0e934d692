#include "backends/start_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backends/list.h"
#include "backends/ref/ref_ops.h"
#include "base/context.h"
#include "base/error.h"

namespace h3 {
namespace {

// A card with one fault.
enum class Fault { none, matmul, one_row, attention, nan, throws };

class FaultyCard final : public RefOps {
 public:
  FaultyCard(Context& context, Fault fault) : RefOps(context), fault_(fault) {}
  void linear(const Linear& weight, const View& x, const View& y) override {
    RefOps::linear(weight, x, y);
    if (fault_ == Fault::throws) fail(Code::device, "an illegal instruction");
    if (fault_ == Fault::nan && y.type == DType::f32) host<float>(y)[5] = std::nanf("");
    if (y.type != DType::bf16 || y.dim[0] < 2) return;
    auto* values = host<uint16_t>(y);
    if (fault_ == Fault::matmul) values[7] ^= 0x20;
    if (fault_ == Fault::one_row) std::memcpy(values + 32 * y.stride[0], values, static_cast<size_t>(2 * y.dim[1]));
  }
  void attention(const AttentionArgs& args) override {
    RefOps::attention(args);
    if (fault_ == Fault::attention && args.causal) host<uint16_t>(args.out)[0] ^= 0x8000;
  }

 private:
  Fault fault_;
};

class StartCheckTest : public ::testing::Test {
 protected:
  std::string verdict(Fault fault) { return start_check(std::make_unique<FaultyCard>(context_, fault)); }
  ThreadPool pool_{1};
  Log log_;
  Context context_{pool_, log_};
};

TEST_F(StartCheckTest, WhatComputesRightIsTaken) {
  EXPECT_EQ(verdict(Fault::none), "");
  EXPECT_EQ(start_check(make_backend("cpu", context_)), "");
}

TEST_F(StartCheckTest, EveryFaultIsFoundAndNamed) {
  EXPECT_NE(verdict(Fault::matmul).find("bf16"), std::string::npos);
  EXPECT_NE(verdict(Fault::one_row), "");
  EXPECT_NE(verdict(Fault::attention).find("attention"), std::string::npos);
  EXPECT_NE(verdict(Fault::nan).find("f32"), std::string::npos);
  EXPECT_NE(verdict(Fault::throws).find("an illegal instruction"), std::string::npos);
}

}  // namespace
}  // namespace h3
