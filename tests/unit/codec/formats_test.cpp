#include "quant/formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "codec/half_math.h"
#include "quant/encode.h"
#include "tests/support/packed_matrix.h"

namespace h3 {
namespace {

std::vector<float> decode(const StoredMatrix& m) {
  std::vector<float> out(static_cast<size_t>(m.rows * m.cols));
  for (int64_t r = 0; r < m.rows; ++r) row_of(m.format).decode_row(m, r, &out[r * m.cols]);
  return out;
}

std::string refusal_of(const StoredMatrix& m) {
  try {
    check_matrix(m, "dit.blocks.3.mlp.fc1.weight");
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// Every half against the math library: correctly rounded but for the listed arguments, and with a margin that no
// contraction of the series can use up.
TEST(HalfMath, Exp2OfEveryHalf) {
  int high = 0;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_f32(static_cast<uint16_t>(bits));
    if (!std::isfinite(value)) continue;
    const float got = exp2_of_half(static_cast<uint16_t>(bits));
    const long double exact = std::exp2(static_cast<long double>(value));
    const float want = static_cast<float>(exact);
    if (value >= 128) {
      EXPECT_TRUE(std::isinf(got)) << value;
    } else if (got != want) {
      ++high;
      EXPECT_EQ(f32_bits(got), f32_bits(want) + 1) << value;
    } else if (want >= 0x1p-126f) {
      const long double ulp = std::ldexp(1.0L, std::ilogb(want) - 23);
      const long double middle = std::fabs(std::fabs(exact - static_cast<long double>(want)) - ulp / 2);
      if (std::floor(value) == value) continue;
      EXPECT_GT(middle / exact, 1e-14L) << value;
    }
  }
  EXPECT_EQ(high, 42);
}

TEST(HalfMath, Log2OfEveryNormalHalf) {
  int different = 0;
  for (uint32_t bits = 0x0400; bits < 0x7c00; ++bits) {
    const float got = log2_of_half(static_cast<uint16_t>(bits));
    const float want = static_cast<float>(std::log2(static_cast<long double>(f16_to_f32(static_cast<uint16_t>(bits)))));
    if (got == want) continue;
    ++different;
    EXPECT_EQ(std::abs(static_cast<int64_t>(f32_bits(got)) - static_cast<int64_t>(f32_bits(want))), 1) << bits;
  }
  EXPECT_EQ(different, 21);
}

TEST(HalfMath, ContainerRoundingDiffersOnTiesOfSubnormalsOnly) {
  int different = 0;
  for (uint32_t u = 0x32000000; u < 0x38900000; u += 0x800) {  // every tie of a subnormal half is among them
    if (f32_to_f16_cmf(f32_from_bits(u)) != f32_to_f16(f32_from_bits(u))) ++different;
  }
  EXPECT_EQ(different, 512);
}

TEST(Float8, EncodingInvertsDecodingAndRoundsToEven) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_f32(static_cast<uint8_t>(code));
    if (std::isnan(value)) continue;
    EXPECT_EQ(f32_to_e4m3(value), code);
    if ((code & 0x7f) >= 0x7e) continue;
    const float next = e4m3_to_f32(static_cast<uint8_t>(code + 1)), middle = (value + next) / 2;
    EXPECT_EQ(f32_to_e4m3(middle), code % 2 == 0 ? code : code + 1) << code;
    EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, value)), code) << code;
    EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, next)), code + 1) << code;
  }
  EXPECT_EQ(f32_to_e4m3(1e30f), 0x7e);
  EXPECT_EQ(f32_to_e4m3(-INFINITY), 0xfe);
  EXPECT_EQ(f32_to_e4m3(NAN), 0x7f);
}

TEST(Formats, ScaledFloat8) {
  const uint8_t codes[] = {0x38, 0xb8, 0x7e, 0x01};  // e4m3: 1, -1, 448, 2^-9
  const float scales[] = {0.5f, 3.0f};
  StoredMatrix m{.format = Format::f8_e4m3, .rows = 2, .cols = 2, .data = std::as_bytes(std::span(codes))};
  EXPECT_EQ(decode(m), (std::vector<float>{1, -1, 448, 0x1p-9f}));
  m.scale = std::as_bytes(std::span(scales));
  EXPECT_EQ(decode(m), (std::vector<float>{0.5f, -0.5f, 1344, 3 * 0x1p-9f}));
  m.scale = m.scale.first(4);
  EXPECT_EQ(decode(m), (std::vector<float>{0.5f, -0.5f, 224, 0x1p-10f}));
}

TEST(Formats, PreScaleMultipliesColumns) {
  const float scales[] = {2, 0.25f, 1}, weights[] = {1, 2, 3, 4, 5, 6};
  StoredMatrix m{.format = Format::f32, .rows = 2, .cols = 3, .data = std::as_bytes(std::span(weights))};
  m.pre_scale = std::as_bytes(std::span(scales));
  EXPECT_EQ(decode(m), (std::vector<float>{2, 0.5f, 3, 8, 1.25f, 6}));
}

// Rows taken out of a packed matrix decode to the same bits, whatever planes the format has.
TEST(Formats, GatheredRowsAndSegments) {
  PackedMaker maker(11);
  for (const Format format : weight_formats()) {
    const int64_t cols = 512;
    const StoredMatrix m = maker.make(format, 150, cols);
    check_matrix(m, row_of(format).name);
    const std::vector<float> all = decode(m);
    const std::vector<int64_t> rows = {3, 149, 0, 3, 128, 17};
    const StoredMatrix some = joined(gather_rows(m, rows));
    check_matrix(some, row_of(format).name);
    const std::vector<float> got = decode(some);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(0, std::memcmp(&got[i * cols], &all[rows[i] * cols], cols * 4)) << row_of(format).name << ' ' << i;
    }
    MatrixSource source;
    source.append(m, 64, 86);
    source.append(m, 0, 64);
    source.append(m, 0, 150);
    const std::vector<GatheredMatrix> segments = source.segments();
    ASSERT_EQ(segments.size(), 1u);
    std::vector<float> want(all.size() * 2);
    source.decode_rows(0, 300, want.data());
    EXPECT_EQ(0, std::memcmp(decode(joined(segments[0])).data(), want.data(), want.size() * 4)) << row_of(format).name;
    MatrixSource whole;
    whole.append(m, 0, 150);
    const GatheredMatrix same = whole.segments().at(0);
    ASSERT_EQ(same.planes[0].size(), 1u) << row_of(format).name;
    EXPECT_EQ(same.planes[0][0].data(), m.data.data()) << "copied without need";
    EXPECT_EQ(whole.stored_bytes(), m.bytes());
  }
}

TEST(Formats, SegmentsOfTwoTensors) {
  PackedMaker maker(12);
  const StoredMatrix a = maker.make(Format::q4_k, 4, 256), b = maker.make(Format::q6_k, 6, 256);
  MatrixSource source;
  source.append(a, 0, 4);
  source.append(b, 2, 3);
  const std::vector<GatheredMatrix> segments = source.segments();
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0].format, Format::q4_k);
  EXPECT_EQ(segments[1].format, Format::q6_k);
  std::vector<float> want(7 * 256);
  source.decode_rows(0, 7, want.data());
  std::vector<float> got = decode(joined(segments[0]));
  for (const float v : decode(joined(segments[1]))) got.push_back(v);
  EXPECT_EQ(got, want);
}

TEST(Formats, OddColumnsAreRefusedByName) {
  for (const Format format : weight_formats()) {
    const int block = row_of(format).block_cols;
    if (block == 1) continue;
    StoredMatrix m{.format = format, .rows = 2, .cols = block + 8};
    const std::string text = refusal_of(m);
    EXPECT_NE(text.find("dit.blocks.3.mlp.fc1.weight"), std::string::npos) << text;
    EXPECT_NE(text.find(row_of(format).name), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(block + 8) + " columns"), std::string::npos) << text;
  }
}

TEST(Formats, WrongPlanesAreRefused) {
  PackedMaker maker(13);
  for (const Format format : weight_formats()) {
    const StoredMatrix good = maker.make(format, 3, 256);
    EXPECT_EQ(refusal_of(good), "") << row_of(format).name;
    for (auto plane : {&StoredMatrix::data, &StoredMatrix::scale, &StoredMatrix::scale2, &StoredMatrix::codebook}) {
      StoredMatrix bad = good;
      bad.*plane = good.data.first(3);
      EXPECT_NE(refusal_of(bad), "") << row_of(format).name;
    }
    StoredMatrix bad = good;
    bad.rows = (int64_t{1} << 60) + 1;
    EXPECT_NE(refusal_of(bad), "") << row_of(format).name;
  }
  StoredMatrix rotated = maker.make(Format::int8_convrot, 2, 512);
  for (const int group : {-4, 1, 2, 8, 128, 1024, 16384}) {
    rotated.rotation = group;
    EXPECT_NE(refusal_of(rotated), "") << group;
  }
}

}  // namespace
}  // namespace h3
