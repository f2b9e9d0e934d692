#include "quant/float8_rows.h"

#include <algorithm>
#include <utility>

#include "codec/float8_row.h"

namespace h3 {
namespace {

// Left as the system gives it, so that pages that nobody writes take no memory.
struct Rows {
  std::unique_ptr<uint8_t[]> codes, scales;  // scales: f32, little-endian
};

void encode_row(const float* values, int64_t count, uint8_t* codes, uint8_t* scale) {
  const float absmax = absmax_of(values, count), inverse = float8_row_inverse(absmax);
  for (int64_t i = 0; i < count; ++i) codes[i] = f32_to_e4m3(values[i] * inverse);
  store_f32(scale, float8_row_scale(absmax));
}

void encode_rows(const MatrixSource& source, ThreadPool& pool, const Rows& to) {
  constexpr int64_t kAtOnce = 64;
  const int64_t cols = source.cols;
  pool.parallel((source.rows + kAtOnce - 1) / kAtOnce, [&](int64_t part) {
    const int64_t first = part * kAtOnce, count = std::min(kAtOnce, source.rows - first);
    std::vector<float> decoded(static_cast<size_t>(count * cols));
    source.decode_rows(first, count, decoded.data());
    for (int64_t r = 0; r < count; ++r) {
      encode_row(&decoded[r * cols], cols, &to.codes[(first + r) * cols], &to.scales[4 * (first + r)]);
    }
  });
}

}  // namespace

MatrixSource float8_rows(MatrixSource source, ThreadPool& pool, bool values) {
  const auto stored = [](const MatrixSource::Part& part) { return part.matrix.format == Format::f8_e4m3; };
  if (std::all_of(source.parts.begin(), source.parts.end(), stored)) return source;
  const auto size = static_cast<size_t>(source.rows * source.cols), scales = static_cast<size_t>(4 * source.rows);
  const auto made = std::make_shared<Rows>();
  made->codes.reset(new uint8_t[size]);
  made->scales.reset(new uint8_t[scales]);
  if (values) encode_rows(source, pool, *made);
  StoredMatrix matrix{.format = Format::f8_e4m3, .rows = source.rows, .cols = source.cols};
  matrix.data = std::as_bytes(std::span<const uint8_t>(made->codes.get(), size));
  matrix.scale = std::as_bytes(std::span<const uint8_t>(made->scales.get(), scales));
  matrix.keep_alive = made;
  MatrixSource out;
  out.name = std::move(source.name);
  out.append(matrix, 0, matrix.rows);
  return out;
}

}  // namespace h3
