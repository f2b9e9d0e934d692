// The default body of quantise_nvfp4.
#include <cstring>
#include <vector>

#include "base/context.h"
#include "base/error.h"
#include "codec/absmax.h"
#include "codec/nvfp4_row.h"
#include "ops/ops.h"
#include "tensor/rows.h"

namespace h3 {

void Ops::quantise_nvfp4(const View& x, const View& factors, const View& codes, const View& scales) {
  const int64_t rows = x.dim[0], cols = x.dim[1], width = nvfp4_row_bytes(cols), bytes = nvfp4_scale_bytes(rows, cols);
  H3_ASSERT(device().is_host() && cols % 16 == 0 && factors.contiguous() && factors.elements() == rows);
  H3_ASSERT(codes.contiguous() && codes.bytes() == rows * width && scales.contiguous() && scales.bytes() == bytes);
  auto* const plane = reinterpret_cast<uint8_t*>(scales.data);
  std::memset(plane, 0, static_cast<size_t>(bytes));
  context().pool.parallel(rows, [&](int64_t row) {
    std::vector<float> values(static_cast<size_t>(cols));
    rows::load_row(x, row, 0, cols, values.data());
    const float absmax = absmax_of(values.data(), cols), global = nvfp4_row_global(absmax);
    host<float>(factors)[row] = nvfp4_row_factor(absmax);
    auto* const to = reinterpret_cast<uint8_t*>(codes.data) + row * width;
    for (int64_t block = 0; block < cols / 16; ++block) {
      plane[nvfp4_scale_offset(row, block, cols)] =
          nvfp4_encode_block(&values[static_cast<size_t>(16 * block)], global, to + 8 * block);
    }
  });
}

}  // namespace h3
