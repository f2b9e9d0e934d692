#include "quant/matrix.h"

#include "base/error.h"

namespace h3 {
namespace {

const uint8_t* bytes_of(std::span<const std::byte> plane) {
  return plane.empty() ? nullptr : reinterpret_cast<const uint8_t*>(plane.data());
}

}  // namespace

int64_t StoredMatrix::bytes() const {
  return static_cast<int64_t>(data.size() + scale.size() + scale2.size() + codebook.size() + pre_scale.size());
}

PackedRows packed_rows(const StoredMatrix& matrix) {
  PackedRows m;
  m.data = bytes_of(matrix.data);
  m.scale = bytes_of(matrix.scale);
  m.scale2 = bytes_of(matrix.scale2);
  m.codebook = bytes_of(matrix.codebook);
  m.pre_scale = bytes_of(matrix.pre_scale);
  m.rows = matrix.rows;
  m.cols = matrix.cols;
  m.rotation = matrix.rotation;
  m.row_scales = static_cast<int64_t>(matrix.scale.size()) == 4 * matrix.rows;
  return m;
}

void MatrixSource::append(const StoredMatrix& matrix, int64_t first, int64_t count) {
  H3_ASSERT(first >= 0 && count >= 0 && first + count <= matrix.rows);
  H3_ASSERT(parts.empty() || matrix.cols == cols);
  cols = matrix.cols;
  rows += count;
  if (!parts.empty()) {  // merge with a part it continues
    Part& last = parts.back();
    if (last.matrix.data.data() == matrix.data.data() && last.first + last.rows == first) {
      last.rows += count;
      return;
    }
  }
  parts.push_back({matrix, first, count});
}

Format MatrixSource::format() const {
  H3_ASSERT(!parts.empty());
  return parts.front().matrix.format;
}

int64_t MatrixSource::stored_bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts) {
    const int64_t all = part.matrix.bytes();
    bytes += part.rows == part.matrix.rows
                 ? all
                 : static_cast<int64_t>(static_cast<double>(all) * static_cast<double>(part.rows) /
                                        static_cast<double>(part.matrix.rows));
  }
  return bytes;
}

void MatrixSource::decode_rows(int64_t first, int64_t count, float* out) const {
  H3_ASSERT(first >= 0 && count >= 0 && first + count <= rows);
  int64_t start = 0;
  for (const Part& part : parts) {
    const int64_t begin = first > start ? first : start;
    const int64_t end = first + count < start + part.rows ? first + count : start + part.rows;
    const FormatRow& format = row_of(part.matrix.format);
    for (int64_t r = begin; r < end; ++r)
      format.decode_row(part.matrix, part.first + r - start, out + (r - first) * cols);
    start += part.rows;
  }
}

std::vector<GatheredMatrix> MatrixSource::segments() const {
  std::vector<GatheredMatrix> out;
  std::vector<int64_t> taken;
  for (size_t i = 0; i < parts.size(); ++i) {
    const StoredMatrix& matrix = parts[i].matrix;
    for (int64_t r = 0; r < parts[i].rows; ++r) taken.push_back(parts[i].first + r);
    if (i + 1 < parts.size() && parts[i + 1].matrix.data.data() == matrix.data.data()) continue;
    out.push_back(gather_rows(matrix, taken));
    taken.clear();
  }
  return out;
}

}  // namespace h3
