#include "codec/float8_row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "quant/float8_rows.h"

namespace h3 {
namespace {

// Rows taken out of order from an f32 matrix; every one is what float8_row_round makes of it.
TEST(Float8Row, MatricesRoundRowByRow) {
  constexpr int64_t kRows = 150, kCols = 40;
  std::vector<float> values;
  for (int64_t i = 0; i < kRows * kCols; ++i)
    values.push_back(static_cast<float>(std::sin(0.7 * static_cast<double>(i)) * (1 + i / kCols)));
  StoredMatrix stored{.format = Format::f32, .rows = kRows, .cols = kCols};
  stored.data = std::as_bytes(std::span<const float>(values));
  MatrixSource source;
  source.append(stored, 100, 50);
  source.append(stored, 0, 100);
  ThreadPool pool(3);
  const MatrixSource made = float8_rows(source, pool);
  EXPECT_EQ(made.format(), Format::f8_e4m3);
  EXPECT_EQ(made.segments().size(), 1u);
  check_matrix(made.parts.front().matrix, "rows");
  EXPECT_EQ(float8_rows(source, pool, false).stored_bytes(), kRows * (kCols + 4));
  std::vector<float> got(values.size());
  made.decode_rows(0, kRows, got.data());
  for (int64_t r = 0; r < kRows; ++r) {
    const float* const from = values.data() + (r < 50 ? r + 100 : r - 50) * kCols;
    std::vector<double> want(from, from + kCols);
    float8_row_round(want.data(), kCols);
    for (int64_t i = 0; i < kCols; ++i) {
      EXPECT_FLOAT_EQ(got[r * kCols + i], static_cast<float>(want[i])) << r << " " << i;
    }
  }
}

// Rows that are in e4m3 already keep their codes and scales also beside others.
TEST(Float8Row, AMatrixOfTwoFormatsBecomesOne) {
  constexpr int64_t kCols = 32;
  std::vector<float> values;
  for (int64_t i = 0; i < 2 * kCols; ++i) values.push_back(static_cast<float>(std::cos(0.3 * static_cast<double>(i))));
  StoredMatrix plain{.format = Format::f32, .rows = 2, .cols = kCols};
  plain.data = std::as_bytes(std::span<const float>(values));
  MatrixSource whole;
  whole.append(plain, 0, 2);
  ThreadPool pool(1);
  const MatrixSource rounded = float8_rows(whole, pool);
  MatrixSource mixed = rounded;
  mixed.append(plain, 0, 2);
  ASSERT_EQ(mixed.rows, 4);
  const MatrixSource made = float8_rows(mixed, pool);
  std::vector<float> got(4 * kCols), want(2 * kCols);
  made.decode_rows(0, 4, got.data());
  rounded.decode_rows(0, 2, want.data());
  for (const MatrixSource::Part& part : made.parts) EXPECT_EQ(part.matrix.format, Format::f8_e4m3);
  EXPECT_EQ(std::vector<float>(got.begin(), got.begin() + 2 * kCols), want);
  EXPECT_EQ(std::vector<float>(got.begin() + 2 * kCols, got.end()), want);
}

TEST(Float8Row, LargestMagnitudeIsExact) {
  std::vector<double> row = {3, -7, 0.5, 0};
  float8_row_round(row.data(), 4);
  EXPECT_FLOAT_EQ(static_cast<float>(row[1]), -7);
  EXPECT_EQ(row[3], 0);
}

// Three bits of mantissa: half a step is 1/16 of a value, and 2^-10 of the scale below the smallest normal code.
TEST(Float8Row, ErrorIsHalfAStep) {
  std::vector<double> row;
  for (int i = -500; i <= 500; ++i) row.push_back(std::sin(0.37 * i) * std::exp(-0.01 * std::abs(i)));
  const std::vector<double> given = row;
  float8_row_round(row.data(), static_cast<int64_t>(row.size()));
  double top = 0;
  for (const double v : given) top = std::max(top, std::fabs(v));
  for (size_t i = 0; i < row.size(); ++i) {
    EXPECT_LE(std::fabs(row[i] - given[i]), 1.0001 * (std::fabs(given[i]) / 16 + 0x1p-10 * top / 448)) << i;
  }
}

TEST(Float8Row, NotFiniteSpoilsTheRowAndTinyRowsAreZero) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    std::vector<double> row = {1, bad, 2};
    float8_row_round(row.data(), 3);
    for (const double v : row) EXPECT_TRUE(std::isnan(v));
  }
  std::vector<double> tiny = {1e-31, -1e-32};
  float8_row_round(tiny.data(), 2);
  EXPECT_EQ(tiny[0], 0);
  EXPECT_EQ(tiny[1], 0);
}

}  // namespace
}  // namespace h3
