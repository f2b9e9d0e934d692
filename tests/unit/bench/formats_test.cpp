// What the formats lose: the encoders that only measurements use, and encoded components.
#include "bench/formats.h"

#include <gtest/gtest.h>

#include <cstring>

#include "bench/ggml_encode.h"
#include "sampling/rng.h"
#include "tests/unit/dit/toy_checkpoint.h"

namespace h3 {
namespace {

RowReader reader_of_values(const std::vector<float>& values, int64_t cols) {
  return {static_cast<int64_t>(values.size()) / cols, cols, [&values, cols](int64_t first, int64_t count, float* out) {
            std::memcpy(out, &values[static_cast<size_t>(first * cols)], static_cast<size_t>(count * cols) * 4);
          }};
}

// A code or scale in the wrong place costs far more than rounding does.
TEST(BenchFormats, BlocksLoseWhatTheirBitsSay) {
  const std::vector<float> weights = TorchGenerator(1).randn(8 * 512);
  const std::pair<Format, double> limits[] = {
      {Format::q8_0, 0.008}, {Format::q6_k, 0.025}, {Format::q4_k, 0.085}, {Format::q4_0, 0.11}};
  for (const auto& [format, limit] : limits) {
    const double error = encode_ggml(format, reader_of_values(weights, 512), "w").error.rel_l2();
    EXPECT_LT(error, limit) << row_of(format).name;
    EXPECT_GT(error, limit / 4) << row_of(format).name;
  }
}

TEST(BenchFormats, ZerosStayZeros) {
  const std::vector<float> zeros(256);
  for (const Format format : {Format::q8_0, Format::q4_0, Format::q4_k, Format::q6_k}) {
    const EncodedMatrix encoded = encode_ggml(format, reader_of_values(zeros, 256), "w");
    std::vector<float> decoded(256, 1.0f);
    row_of(format).decode_row(encoded.matrix, 0, decoded.data());
    EXPECT_EQ(decoded, zeros) << row_of(format).name;
  }
}

// Only matrices of blocks change, and q2tp only takes the first of each MLP.
TEST(BenchFormats, ComponentsAreEncodedAsThePackerDoes) {
  testing::ToySize size;
  size.hidden = 32;
  size.ffn = 64;
  const Component component = testing::component_of(testing::toy_source(size));
  ThreadPool pool(1);
  ErrorStats error;
  const Component encoded = encoded_component(component, Format::q2tp, pool, error);
  EXPECT_EQ(encoded.source->find("blocks.0.mlp.fc1.weight")->format, Format::q2tp);
  EXPECT_EQ(encoded.source->find("blocks.2.attn.qkv_proj.weight")->format, Format::q4tp);
  EXPECT_EQ(encoded.source->find("token_refiner.blocks.1.mlp.fc2.weight")->format, Format::q4tp);
  EXPECT_EQ(encoded.source->find("blocks.0.norm1.weight")->format, Format::f32);
  EXPECT_EQ(encoded.source->find("condition_proj.weight")->format, Format::f32);
  EXPECT_GT(error.rel_l2(), 0.05);
  EXPECT_LT(error.rel_l2(), 0.6);
}

TEST(BenchFormats, ThePageHasEveryFormat) {
  std::vector<FormatLoss> losses(2);
  losses[0] = {Format::q4tp, 0.0833, 0.08, 0.123};
  losses[1] = {Format::w4a8, -1, -1, -1};
  const std::string page = formats_markdown(losses);
  EXPECT_NE(page.find("| q4tp | 4.15625 | CMF |"), std::string::npos) << page;
  EXPECT_NE(page.find("ladder | packed | 8.3e-02 | 8.0e-02 | 1.2e-01 |"), std::string::npos) << page;
  EXPECT_NE(page.find("| - | - | - |"), std::string::npos) << page;
}

}  // namespace
}  // namespace h3
