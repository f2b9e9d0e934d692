#include "bench/bench.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "bench/ops.h"
#include "bench/timing.h"
#include "pipeline/precision.h"
#include "quant/matrix.h"

namespace h3 {
namespace {

TEST(Bench, RandomMatricesAreValidAndOfUnitNorm) {
  for (const Format format :
       {Format::noise, Format::q4tp, Format::q2tp, Format::q8_row, Format::q8_0, Format::q4_k, Format::q6_k}) {
    const StoredMatrix matrix = random_matrix(format, 5, 512, 3);
    check_matrix(matrix, "random");
    double squares = 0;
    for (int64_t r = 0; r < matrix.rows; ++r) {
      std::vector<float> row(512);
      row_of(format).decode_row(matrix, r, row.data());
      for (const float v : row) {
        ASSERT_TRUE(std::isfinite(v)) << row_of(format).name;
        squares += static_cast<double>(v) * static_cast<double>(v);
      }
    }
    EXPECT_GT(squares / 5, 0.05) << row_of(format).name;
    EXPECT_LT(squares / 5, 5) << row_of(format).name;
  }
}

TEST(Bench, TurnsAlternate) {
  std::vector<int> order;
  const auto seconds = time_in_turns({[&] { order.push_back(0); }, [&] { order.push_back(1); }}, 2);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 0, 1, 0, 1}));
  ASSERT_EQ(seconds.size(), 2u);
  EXPECT_EQ(seconds[0].size(), 2u);
  EXPECT_DOUBLE_EQ(median_of({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median_of({4, 1, 2, 3}), 2.5);
}

// A clip gives the autoencoders bf16 beside a transformer in eight bits; what does not run in them is refused.
TEST(Bench, DecodersStayAboveEightBits) {
  const std::pair<Compute, const char*> rows[] = {
      {Compute::packed, "bf16"}, {Compute::int8, "bf16"}, {Compute::bf16, "bf16"}, {Compute::f32, "f32"}};
  for (const auto& [compute, decoder] : rows) {
    ModelBench model;
    model.compute = compute;
    const Request request = clip_request(model);
    EXPECT_EQ(request.precision, precision_name(compute));
    EXPECT_EQ(request.vae_precision, decoder);
  }
  Log log;
  const std::pair<BenchKind, Compute> refused[] = {
      {BenchKind::vae, Compute::packed}, {BenchKind::vae, Compute::int8}, {BenchKind::decode, Compute::int8}};
  for (const auto& [kind, compute] : refused) {
    BenchOptions options;
    options.kind = kind;
    options.device = "cpu";
    options.model.compute = compute;
    try {
      run_bench(options, log, [](const Json&) { ADD_FAILURE() << "measured"; });
      FAIL() << precision_name(compute);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::usage);
      EXPECT_NE(std::string(error.what()).find("give f32, bf16 or f16"), std::string::npos) << error.what();
    }
  }
}

// Before anything is measured.
TEST(Bench, WhatTheDeviceCannotDoIsRefused) {
  BenchOptions eight_bit, recorded, both;
  eight_bit.model.attention = AttentionMath::eight_bit;
  recorded.model.record_blocks = 1;
  both.graphs = true;
  const std::pair<BenchOptions, const char*> refused[] = {{eight_bit, "--attention: 8bit is not possible, cpu"},
                                                          {recorded, "--graph: cpu records no calls"},
                                                          {both, "--graph: cpu records no calls"}};
  Log log;
  for (auto [options, text] : refused) {
    options.kind = BenchKind::step;
    options.device = "cpu";
    try {
      run_bench(options, log, [](const Json&) { ADD_FAILURE() << "measured"; });
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::usage);
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(clip_request(eight_bit.model).attention, "8bit");
  EXPECT_EQ(clip_request(recorded.model).attention, "dense");
}

TEST(Bench, LinesNameWhatWasMeasured) {
  Json row = Json::object({{"bench", "ops"}, {"op", "linear"}, {"shape", "qkv"}, {"compute", "int8"}, {"rows", 1874}});
  row.set("median_s", 0.25).set("tflops", 1.5).set("fraction_of_peak", 0.5).set("times_onednn", 1.75);
  const std::string line = bench_line(row);
  for (const char* part :
       {"ops linear qkv int8 1874 rows", "250.00 ms", "1.500 TFLOP/s", "50 % of the peak", "1.75x"}) {
    EXPECT_NE(line.find(part), std::string::npos) << part << " in " << line;
  }
}

}  // namespace
}  // namespace h3
