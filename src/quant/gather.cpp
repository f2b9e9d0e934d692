// Rows of a packed matrix as a new packed matrix.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "codec/ladder.h"
#include "codec/nvfp4.h"
#include "quant/matrix.h"

namespace h3 {
namespace {

// Bytes that each row has in the consecutive planes of the payload.
std::vector<int64_t> plane_row_bytes(Format format, int64_t cols) {
  switch (format) {
    case Format::q4tp: return {cols / 32 * 16, 4, rung_bytes(cols / 32)};
    case Format::q2tp: return {cols / 32 * 8, 4, rung_bytes(cols / 32)};
    case Format::q8_row:
    case Format::q8_2f: return {cols, 2};
    case Format::nvfp4: return {nvfp4_row_bytes(cols)};
    default: return {row_of(format).data_bytes(1, cols)};
  }
}

// The planes of the result, in one allocation that the matrix keeps alive.
class Gatherer {
 public:
  Gatherer(const StoredMatrix& from, std::span<const int64_t> rows) : from_(from), rows_(rows) {
    H3_ASSERT(from.format != Format::noise);  // has no rows to copy
    for (const int64_t row : rows) H3_ASSERT(row >= 0 && row < from.rows);
    to_ = from;
    to_.rows = static_cast<int64_t>(rows.size());
  }

  StoredMatrix run() {
    const int64_t data = row_of(from_.format).data_bytes(to_.rows, from_.cols);
    const int64_t scale = scale_bytes();
    const int64_t scale2 = from_.format == Format::w4a8 ? 4 * to_.rows : static_cast<int64_t>(from_.scale2.size());
    auto bytes = std::make_shared<Storage>();
    bytes->all.resize(static_cast<size_t>(data + scale + scale2));
    bytes->original = from_.keep_alive;  // holds codebook and pre_scale
    std::byte* p = bytes->all.data();
    gather_data(p);
    gather_scale(p + data, scale);
    gather_scale2(p + data + scale, scale2);
    to_.data = {p, static_cast<size_t>(data)};
    to_.scale = {p + data, static_cast<size_t>(scale)};
    to_.scale2 = {p + data + scale, static_cast<size_t>(scale2)};
    to_.keep_alive = bytes;
    return to_;
  }

 private:
  struct Storage {
    std::vector<std::byte> all;
    std::shared_ptr<const void> original;
  };

  // A scale of the whole tensor stays one.
  bool one_scale() const { return from_.format != Format::w4a8 && from_.scale.size() <= 4; }

  int64_t scale_bytes() const {
    if (from_.format == Format::nvfp4) return nvfp4_scale_bytes(to_.rows, from_.cols);
    if (from_.format == Format::w4a8) return to_.rows * (from_.cols / 16);
    return one_scale() ? static_cast<int64_t>(from_.scale.size()) : 4 * to_.rows;
  }

  void copy_rows(const std::byte* source, int64_t width, std::byte* target) const {
    for (size_t i = 0; i < rows_.size() && width > 0; ++i) {
      std::memcpy(target + static_cast<int64_t>(i) * width, source + rows_[i] * width, static_cast<size_t>(width));
    }
  }

  void gather_data(std::byte* target) const {
    int64_t source = 0;
    std::byte* p = target;
    for (const int64_t width : plane_row_bytes(from_.format, from_.cols)) {
      copy_rows(from_.data.data() + source, width, p);
      source += from_.rows * width;
      p += to_.rows * width;
    }
    if (from_.format != Format::q8_2f) return;  // else the column scales follow
    std::memcpy(p, from_.data.data() + source, static_cast<size_t>(2 * from_.cols));
  }

  void gather_scale(std::byte* target, int64_t bytes) const {
    if (from_.format == Format::nvfp4) {
      const int64_t blocks = nvfp4_row_bytes(from_.cols) / 8;
      for (int64_t i = 0; i < to_.rows; ++i) {
        for (int64_t b = 0; b < blocks; ++b) {
          target[nvfp4_scale_offset(i, b, from_.cols)] = from_.scale[nvfp4_scale_offset(rows_[i], b, from_.cols)];
        }
      }
    } else if (one_scale()) {
      std::copy(from_.scale.begin(), from_.scale.end(), target);
    } else if (to_.rows > 0) {
      copy_rows(from_.scale.data(), bytes / to_.rows, target);
    }
  }

  void gather_scale2(std::byte* target, int64_t bytes) const {
    if (from_.format == Format::w4a8) return copy_rows(from_.scale2.data(), 4, target);
    std::copy_n(from_.scale2.begin(), bytes, target);
  }

  const StoredMatrix& from_;
  std::span<const int64_t> rows_;
  StoredMatrix to_;
};

}  // namespace

StoredMatrix gather_rows(const StoredMatrix& matrix, std::span<const int64_t> rows) {
  return Gatherer(matrix, rows).run();
}

}  // namespace h3
