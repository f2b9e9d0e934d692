// Byte vectors of the formats: tests/data/codec, and with H3_GOLDEN the full files.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "apps/parity/codec_vectors.h"
#include "base/file_map.h"
#include "base/text.h"
#include "tests/support/packed_matrix.h"

namespace h3 {
namespace {

const std::string kFolder = std::string(H3_SOURCE_DIR) + "/tests/data/codec/";

std::vector<CodecVector> read_vectors(const std::string& path) {
  return codec_vectors(Json::parse(read_file(path), path), path);
}

// Empty when decoding gives the values.
std::string decode_problem(const CodecVector& v) {
  const StoredMatrix& m = v.matrix;
  if (v.values.empty() || static_cast<int64_t>(v.values.size()) != m.rows * m.cols) return "the vector has no values";
  std::vector<float> got(v.values.size());
  for (int64_t r = 0; r < m.rows; ++r) row_of(m.format).decode_row(m, r, &got[r * m.cols]);
  double top = 0;
  for (const float value : v.values) top = std::max(top, std::fabs(static_cast<double>(value)));
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = std::fabs(static_cast<double>(got[i]) - static_cast<double>(v.values[i]));
    const bool equal = v.tolerance == 0 ? f32_bits(got[i]) == f32_bits(v.values[i]) : d <= v.tolerance * top;
    if (!equal) return strf("value %zu is %.9g instead of %.9g", i, got[i], v.values[i]);
  }
  return {};
}

std::string plane_problem(const char* plane, std::span<const std::byte> got, std::span<const std::byte> want) {
  if (got.size() != want.size()) return strf("%zu bytes of %s instead of %zu", got.size(), plane, want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] != want[i]) return strf("byte %zu of %s differs", i, plane);
  }
  return {};
}

std::string encode_problem(const CodecVector& v, ThreadPool& pool) {
  const RowReader reader{v.matrix.rows, v.matrix.cols, [&](int64_t first, int64_t count, float* out) {
                           std::memcpy(out, &v.input[first * v.matrix.cols],
                                       static_cast<size_t>(count * v.matrix.cols) * 4);
                         }};
  const StoredMatrix made = encode_matrix(v.matrix.format, reader, v.name, pool, v.options).matrix;
  return plane_problem("data", made.data, v.matrix.data) + plane_problem("scale", made.scale, v.matrix.scale) +
         plane_problem("scale2", made.scale2, v.matrix.scale2);
}

void check_vectors(const std::vector<CodecVector>& vectors) {
  ThreadPool pool(2);
  for (const CodecVector& v : vectors) {
    EXPECT_EQ(decode_problem(v), "") << v.name;
    if (v.input.empty()) continue;
    EXPECT_EQ(encode_problem(v, pool), "") << v.name;
  }
}

std::string file_of(Format format) { return kFolder + lower(row_of(format).name) + ".json"; }

bool is_number(Format format) {  // tested with the scalars
  return format <= Format::f8_e5m2 || format > Format::q6_k;
}

class Vectors : public ::testing::TestWithParam<Format> {};

TEST_P(Vectors, Match) {
  const std::vector<CodecVector> vectors = read_vectors(file_of(GetParam()));
  check_vectors(vectors);
  for (const CodecVector& v : vectors) EXPECT_EQ(v.matrix.format, GetParam()) << v.name;
}

// The comparison sees one wrong byte of a payload.
TEST_P(Vectors, AFlippedByteIsSeen) {
  CodecVector v = read_vectors(file_of(GetParam())).front();
  v.tolerance = std::min(v.tolerance, 1e-3);
  std::vector<std::byte> bytes(v.matrix.data.begin(), v.matrix.data.end());
  bytes[0] ^= std::byte{0xff};
  v.matrix.data = bytes;
  EXPECT_NE(decode_problem(v), "");
}

INSTANTIATE_TEST_SUITE_P(, Vectors, ::testing::ValuesIn([] {
                           std::vector<Format> formats;
                           for (const Format f : weight_formats()) {
                             if (!is_number(f)) formats.push_back(f);
                           }
                           return formats;
                         }()),
                         [](const auto& test) { return std::string(row_of(test.param).name); });

TEST(VectorFiles, EveryFileBelongsToAFormat) {
  std::set<std::string> known;
  for (const Format format : weight_formats()) known.insert(file_of(format));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    EXPECT_TRUE(known.contains(entry.path().string())) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 17);
}

TEST(VectorFiles, FullGoldenFiles) {
  const char* golden = std::getenv("H3_GOLDEN");
  if (golden == nullptr) GTEST_SKIP() << "H3_GOLDEN is not set";
  for (const char* name : {"q4tp_vectors.json", "nvfp4_vectors.json"}) {
    check_vectors(read_vectors(std::string(golden) + "/" + name));
  }
}

}  // namespace
}  // namespace h3
