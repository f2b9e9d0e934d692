#include "quant/encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/support/packed_matrix.h"

namespace h3 {
namespace {

struct Weights {
  int64_t rows, cols;
  std::vector<float> values;
  RowReader reader() const {
    return {rows, cols, [this](int64_t first, int64_t count, float* out) {
              std::memcpy(out, &values[first * cols], static_cast<size_t>(count * cols) * 4);
            }};
  }
};

// Sums of uniform numbers: close to normal, like trained weights; rows and groups differ in size.
Weights bell(int64_t rows, int64_t cols) {
  Weights w{rows, cols, std::vector<float>(static_cast<size_t>(rows * cols))};
  PackedMaker random(5);
  for (int64_t r = 0; r < rows; ++r) {
    const float size = 0.01f + 0.05f * random.uniform();
    for (int64_t c = 0; c < cols; ++c) {
      float sum = -6;
      for (int i = 0; i < 12; ++i) sum += random.uniform();
      w.values[r * cols + c] = size * sum;
    }
  }
  return w;
}

std::string failure_of(Format format, const Weights& w, const EncodeOptions& options = {}) {
  ThreadPool pool(1);
  try {
    encode_matrix(format, w.reader(), "te.norm.weight", pool, options);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

struct Bound {
  Format format;
  double rel_l2;
};

// What the formats cost on bell-shaped weights: just above the measured values. The encoders are fixed to the byte by
// their vectors; this is about the statistics.
TEST(Encode, RoundTripErrors) {
  const Weights w = bell(48, 1024);
  ThreadPool pool(2);
  for (const Bound& bound : {Bound{Format::f32, 0},
                             {Format::f16, 3e-4},
                             {Format::bf16, 2.4e-3},
                             {Format::q8_row, 0.011},
                             {Format::q8_2f, 0.011},
                             {Format::int8_convrot, 0.011},
                             {Format::nvfp4, 0.105},
                             {Format::q4tp, 0.093},
                             {Format::q2tp, 0.43}}) {
    const EncodedMatrix made = encode_matrix(bound.format, w.reader(), "w", pool);
    EXPECT_LE(made.error.rel_l2(), bound.rel_l2) << row_of(bound.format).name;
    EXPECT_GE(made.error.rel_l2(), bound.rel_l2 / 2) << row_of(bound.format).name;
    double squares = 0, top = 0;
    std::vector<float> row(1024);
    for (int64_t r = 0; r < w.rows; ++r) {
      row_of(bound.format).decode_row(made.matrix, r, row.data());
      for (int64_t c = 0; c < w.cols; ++c) {
        const double d = static_cast<double>(row[c]) - static_cast<double>(w.values[r * w.cols + c]);
        squares += d * d;
        top = std::max(top, std::fabs(d));
      }
    }
    EXPECT_NEAR(made.error.squares, squares, 1e-9 * squares) << row_of(bound.format).name;
    EXPECT_EQ(made.error.max_abs, top) << row_of(bound.format).name;
    check_matrix(made.matrix, "w");
  }
}

TEST(Encode, TheSearchPays) {
  const Weights w = bell(8, 512);
  ThreadPool pool(1);
  for (const Format format : {Format::q4tp, Format::q2tp}) {
    const double with = encode_matrix(format, w.reader(), "w", pool).error.rel_l2();
    EXPECT_LT(with, encode_matrix(format, w.reader(), "w", pool, {.search = false}).error.rel_l2());
  }
}

TEST(Encode, ThreadsDoNotChangeABit) {
  const Weights w = bell(37, 320);
  for (const Format format : {Format::q4tp, Format::q2tp, Format::q8_2f, Format::nvfp4}) {
    ThreadPool one(1), three(3);
    const EncodedMatrix a = encode_matrix(format, w.reader(), "w", one),
                        b = encode_matrix(format, w.reader(), "w", three);
    EXPECT_TRUE(std::equal(a.matrix.data.begin(), a.matrix.data.end(), b.matrix.data.begin()));
    EXPECT_EQ(a.error.squares, b.error.squares);
  }
}

// Chunks of rows are read in order; the last one is short.
TEST(Encode, ReadsInChunks) {
  const int64_t rows = 2100, cols = 4096;
  int64_t next = 0, calls = 0;
  const RowReader reader{rows, cols, [&](int64_t first, int64_t count, float* out) {
                           EXPECT_EQ(first, next % rows);
                           EXPECT_LE(count * cols, int64_t{1} << 23);
                           next += count;
                           ++calls;
                           for (int64_t r = 0; r < count; ++r)
                             std::fill_n(out + r * cols, cols, static_cast<float>(first + r));
                         }};
  ThreadPool pool(2);
  const EncodedMatrix made = encode_matrix(Format::q8_2f, reader, "w", pool);
  EXPECT_EQ(next, 2 * rows);  // once for the columns, once for the rows
  EXPECT_GT(calls, 4);
  EXPECT_LT(made.error.rel_l2(), 5e-3);
}

TEST(Encode, RefusalsNameTheTensor) {
  EXPECT_NE(failure_of(Format::q4tp, bell(2, 40)).find("te.norm.weight"), std::string::npos);
  EXPECT_NE(failure_of(Format::q4tp, bell(2, 40)).find("multiple of 32"), std::string::npos);
  EXPECT_NE(failure_of(Format::q2tp, bell(2, 40)), "");
  EXPECT_NE(failure_of(Format::q8_2f, bell(1, 40)), "");
  EXPECT_NE(failure_of(Format::q4_k, bell(1, 256)), "");
  EXPECT_NE(failure_of(Format::int8_convrot, bell(1, 256), {.rotation = 64 * 3}), "");
  EXPECT_NE(failure_of(Format::int8_convrot, bell(1, 256), {.rotation = 128}), "");
  EXPECT_EQ(failure_of(Format::int8_convrot, bell(1, 256)), "");
  EXPECT_EQ(failure_of(Format::nvfp4, bell(3, 37)), "");
}

TEST(Encode, WeightsThatDoNotFitAreRefused) {
  for (const Format format : {Format::f16, Format::q8_row, Format::q4tp, Format::q2tp, Format::nvfp4, Format::f32,
                              Format::int8_convrot, Format::bf16, Format::q8_2f}) {
    for (const float value : {INFINITY, -INFINITY, NAN}) {
      Weights w = bell(3, 256);
      w.values[300] = value;
      EXPECT_NE(failure_of(format, w).find("[1, 44]"), std::string::npos) << row_of(format).name;
    }
  }
  Weights large = bell(2, 64);
  large.values[3] = 65520;
  EXPECT_NE(failure_of(Format::f16, large), "");
  EXPECT_EQ(failure_of(Format::q2tp, large), "");
  large.values[3] = 65520 * 1.5f;
  EXPECT_NE(failure_of(Format::q2tp, large), "");
  EXPECT_EQ(failure_of(Format::q4tp, large), "");
}

TEST(Encode, ZerosStayZero) {
  const Weights w{17, 64, std::vector<float>(17 * 64)};
  ThreadPool pool(1);
  for (const Format format : {Format::q4tp, Format::q2tp, Format::q8_row, Format::q8_2f, Format::nvfp4}) {
    const EncodedMatrix made = encode_matrix(format, w.reader(), "w", pool);
    EXPECT_EQ(made.error.max_abs, 0) << row_of(format).name;
    EXPECT_EQ(made.error.rel_l2(), 0) << row_of(format).name;
  }
}

}  // namespace
}  // namespace h3
