// Rows of a packed matrix in another order.
#include <algorithm>
#include <utility>

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

class Gatherer {
 public:
  Gatherer(const StoredMatrix& from, std::span<const int64_t> rows) : from_(from), rows_(rows) {
    H3_ASSERT(from.format != Format::noise);  // has no rows to copy
    for (const int64_t row : rows) {
      H3_ASSERT(row >= 0 && row < from.rows);
      if (!runs_.empty() && runs_.back().first + runs_.back().second == row) {
        ++runs_.back().second;
      } else {
        runs_.emplace_back(row, 1);
      }
    }
    count_ = static_cast<int64_t>(rows.size());
  }

  GatheredMatrix run() {
    auto made = std::make_shared<Made>();
    made->original = from_.keep_alive;
    to_.format = from_.format;
    to_.rows = packed_rows(from_);
    to_.rows.data = to_.rows.scale = to_.rows.scale2 = to_.rows.codebook = to_.rows.pre_scale = nullptr;
    to_.rows.rows = count_;
    if (runs_.size() == 1 && count_ == from_.rows) {
      add(0, from_.data);
      add(1, from_.scale);
      add(2, from_.scale2);
    } else {
      gather_data(*made);
      gather_scales(*made);
      to_.rows.row_scales = to_.plane_bytes(1) == 4 * count_;
    }
    add(3, from_.codebook);
    add(4, from_.pre_scale);
    to_.keep_alive = std::move(made);
    return std::move(to_);
  }

 private:
  // What no piece of the original can be.
  struct Made {
    std::shared_ptr<const void> original;
    std::vector<std::byte> scale, padding;
  };

  // A scale of the whole tensor stays one.
  bool one_scale() const { return from_.format != Format::w4a8 && from_.scale.size() <= 4; }

  void add(size_t plane, std::span<const std::byte> piece) {
    if (piece.empty()) return;
    GatheredMatrix::Pieces& pieces = to_.planes[plane];
    if (!pieces.empty() && pieces.back().data() + pieces.back().size() == piece.data()) {
      pieces.back() = {pieces.back().data(), pieces.back().size() + piece.size()};
    } else {
      pieces.push_back(piece);
    }
  }

  // The rows of a plane that begins `offset` bytes into `source`, `width` bytes each.
  void add_rows(size_t plane, std::span<const std::byte> source, int64_t offset, int64_t width) {
    for (const auto& [first, count] : runs_) {
      add(plane, source.subspan(static_cast<size_t>(offset + first * width), static_cast<size_t>(count * width)));
    }
  }

  void gather_data(Made& made) {
    int64_t source = 0;
    for (const int64_t width : plane_row_bytes(from_.format, from_.cols)) {
      add_rows(0, from_.data, source, width);
      source += from_.rows * width;
    }
    if (from_.format == Format::q8_2f) {  // the column scales follow
      add(0, from_.data.subspan(static_cast<size_t>(source), static_cast<size_t>(2 * from_.cols)));
    }
    const int64_t missing = row_of(from_.format).data_bytes(count_, from_.cols) - to_.plane_bytes(0);
    made.padding.resize(static_cast<size_t>(missing));
    add(0, made.padding);
  }

  void gather_scales(Made& made) {
    if (from_.format == Format::nvfp4) {  // swizzled in tiles of rows
      made.scale.resize(static_cast<size_t>(nvfp4_scale_bytes(count_, from_.cols)));
      const int64_t blocks = nvfp4_row_bytes(from_.cols) / 8;
      for (int64_t i = 0; i < count_; ++i) {
        for (int64_t b = 0; b < blocks; ++b) {
          made.scale[static_cast<size_t>(nvfp4_scale_offset(i, b, from_.cols))] =
              from_.scale[static_cast<size_t>(nvfp4_scale_offset(rows_[static_cast<size_t>(i)], b, from_.cols))];
        }
      }
      add(1, made.scale);
    } else if (one_scale()) {
      add(1, from_.scale);
    } else {
      add_rows(1, from_.scale, 0, from_.format == Format::w4a8 ? from_.cols / 16 : 4);
    }
    if (from_.format == Format::w4a8) return add_rows(2, from_.scale2, 0, 4);
    add(2, from_.scale2);
  }

  const StoredMatrix& from_;
  std::span<const int64_t> rows_;
  std::vector<std::pair<int64_t, int64_t>> runs_;  // first row, rows
  int64_t count_ = 0;
  GatheredMatrix to_;
};

}  // namespace

int64_t GatheredMatrix::plane_bytes(size_t plane) const {
  int64_t sum = 0;
  for (const std::span<const std::byte>& piece : planes[plane]) sum += static_cast<int64_t>(piece.size());
  return sum;
}

GatheredMatrix gather_rows(const StoredMatrix& matrix, std::span<const int64_t> rows) {
  return Gatherer(matrix, rows).run();
}

}  // namespace h3
