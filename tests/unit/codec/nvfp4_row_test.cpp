#include "codec/nvfp4_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "backends/ref/ref_ops.h"
#include "base/context.h"
#include "sampling/rng.h"

namespace h3 {
namespace {

// As NVIDIA documents the scales of 16 elements: tiles of 128 rows and 4 blocks, tiles of a band of rows behind each
// other; in a tile 32 times the four rows r, r + 32, r + 64, r + 96 with their four blocks.
TEST(Nvfp4Row, ScalesLieAsTensorCoresReadThem) {
  struct Shape {
    int64_t rows, cols;
  };
  for (const Shape& s : {Shape{1, 16}, {37, 112}, {128, 64}, {129, 80}, {300, 5376}}) {
    const int64_t bands = (s.rows + 127) / 128, tiles = (s.cols / 16 + 3) / 4;
    int64_t place = 0, checked = 0;
    for (int64_t band = 0; band < bands; ++band) {
      for (int64_t tile = 0; tile < tiles; ++tile) {
        for (int64_t r = 0; r < 32; ++r) {
          for (int64_t quarter = 0; quarter < 4; ++quarter) {
            for (int64_t b = 0; b < 4; ++b, ++place) {
              const int64_t row = 128 * band + 32 * quarter + r, block = 4 * tile + b;
              ASSERT_EQ(nvfp4_scale_offset(row, block, s.cols), place) << row << ' ' << block << " of " << s.cols;
              checked += row < s.rows && block < s.cols / 16;
            }
          }
        }
      }
    }
    EXPECT_EQ(place, nvfp4_scale_bytes(s.rows, s.cols)) << "padding included";
    EXPECT_EQ(checked, s.rows * (s.cols / 16));
  }
}

// The nearest of all values of a format.
template <typename Decode>
double nearest(double value, int codes, Decode decode) {
  double best = std::numeric_limits<double>::infinity();
  for (int code = 0; code < codes; ++code) {
    const double v = static_cast<double>(decode(code));
    if (std::fabs(v - value) < std::fabs(best - value)) best = v;
  }
  return best;
}

TEST(Nvfp4Row, ValuesAreTheNearestThatCodesStandFor) {
  TorchGenerator generator(9);
  const std::vector<float> values = generator.randn(256);
  std::vector<double> row(values.begin(), values.end());
  row[20] = 0;
  row[77] = -11.5;
  for (int i = 128; i < 144; ++i) row[static_cast<size_t>(i)] *= 1e-4;  // a block whose scale is subnormal
  const std::vector<double> given = row;
  nvfp4_row_round(row.data(), 256);
  const double factor = static_cast<double>(11.5f / 2688);
  for (size_t first = 0; first < 256; first += 16) {
    double top = 0;
    for (size_t i = first; i < first + 16; ++i) top = std::max(top, std::fabs(given[i]));
    const double scale = nearest(top / 6 / factor, 127, [](int c) { return e4m3_to_f32(static_cast<uint8_t>(c)); });
    for (size_t i = first; i < first + 16; ++i) {
      const double unit = scale * factor;
      const double best = unit == 0 ? 0 : unit * nearest(given[i] / unit, 16, [](int c) { return e2m1_to_f32(c); });
      const double error = std::fabs(best - given[i]), own = std::fabs(row[i] - given[i]);
      EXPECT_LE(own, error * (1 + 1e-6) + 1e-12) << i;
    }
  }
  EXPECT_NEAR(row[77], -11.5, 1e-5);
  EXPECT_EQ(row[20], 0);
}

TEST(Nvfp4Row, RowsThatAreNotFiniteOrCountAsZero) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {nan, -nan, inf, -inf}) {
    std::vector<double> row(32, 1.0);
    row[5] = static_cast<double>(bad);
    nvfp4_row_round(row.data(), 32);
    for (const double v : row) EXPECT_TRUE(std::isnan(v));
  }
  for (const double small : {0.0, 1e-31, -1e-31}) {
    std::vector<double> row(20, small);
    nvfp4_row_round(row.data(), 20);
    for (const double v : row) EXPECT_EQ(v, 0);
  }
}

// What the operation writes decodes, as a matrix of the format, to what a row is multiplied as.
TEST(Nvfp4Row, TheOperationWritesTheFormat) {
  ThreadPool pool(2);
  Log log;
  Context context{pool, log};
  const std::unique_ptr<Ops> ops = make_ref_ops(context);
  constexpr int64_t kRows = 133, kCols = 112;
  TorchGenerator generator(4);
  const Tensor x = upload_f32(ops->device(), generator.randn(kRows * kCols).data(), {kRows, kCols}, DType::f32, "x");
  const Tensor factors(ops->device(), DType::f32, {kRows}, "factors");
  const Tensor codes(ops->device(), DType::i32, {kRows, kCols / 8}, "codes");
  const Tensor scales(ops->device(), DType::i32, {nvfp4_scale_bytes(kRows, kCols) / 4}, "scales");
  ops->quantise_nvfp4(x, factors, codes, scales);
  ops->sync();
  const auto* plane = reinterpret_cast<const uint8_t*>(scales.view.data);
  for (int64_t r = 0; r < kRows; ++r) {
    std::vector<double> want(static_cast<size_t>(kCols));
    for (int64_t c = 0; c < kCols; ++c)
      want[static_cast<size_t>(c)] = static_cast<double>(host<float>(x.view)[r * kCols + c]);
    nvfp4_row_round(want.data(), kCols);
    PackedRows m;
    m.data = reinterpret_cast<const uint8_t*>(codes.view.data);
    m.scale = plane;
    m.scale2 = reinterpret_cast<const uint8_t*>(host<float>(factors.view) + r);
    m.rows = kRows, m.cols = kCols;
    std::vector<float> got(static_cast<size_t>(kCols));
    for (int64_t c = 0; c < kCols; c += 8) nvfp4_decode(m, nullptr, r, c, 8, &got[static_cast<size_t>(c)]);
    for (size_t c = 0; c < got.size(); ++c) EXPECT_FLOAT_EQ(got[c], static_cast<float>(want[c])) << r << ' ' << c;
  }
  // Padding is zero: what has no values must not reach a sum.
  std::set<int64_t> used;
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t b = 0; b < kCols / 16; ++b) used.insert(nvfp4_scale_offset(r, b, kCols));
  }
  for (int64_t i = 0; i < nvfp4_scale_bytes(kRows, kCols); ++i) {
    if (used.count(i) == 0) {
      ASSERT_EQ(plane[i], 0) << i;
    }
  }
}

}  // namespace
}  // namespace h3
