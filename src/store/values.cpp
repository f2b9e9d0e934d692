#include "store/values.h"

#include <algorithm>
#include <utility>

#include "quant/formats.h"

namespace h3 {

std::vector<float> values_of(const TensorInfo& info) {
  if (std::find(info.dims.begin(), info.dims.end(), 0) != info.dims.end()) return {};
  StoredMatrix all = stored_matrix(info);
  std::vector<float> out(static_cast<size_t>(all.rows * all.cols));
  const FormatRow& format = row_of(all.format);
  const bool plain = all.scale.empty() && format.data_bytes(1, all.rows) == format.data_bytes(all.rows, 1);
  if (all.cols == 1 && plain) std::swap(all.rows, all.cols);  // a vector is one row
  for (int64_t r = 0; r < all.rows; ++r) format.decode_row(all, r, out.data() + r * all.cols);
  return out;
}

}  // namespace h3
