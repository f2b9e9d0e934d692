#include "quant/matrix.h"

#include "base/error.h"

namespace h3 {

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
  double bits = 0;
  for (const Part& part : parts)
    bits += row_of(part.matrix.format).bits_per_weight * static_cast<double>(part.rows * cols);
  return static_cast<int64_t>(bits / 8);
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

}  // namespace h3
