// Where the panels of a packed operand lie: [slice][panel][k step][step bytes], the last slice shorter (isa/kernels.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backends/cpu/isa/kernels.h"

namespace h3 {

class Packed {
 public:
  Packed() = default;
  // Rows (A) or columns (B) in panels of `width`, k values each.
  Packed(const isa::Gemm& gemm, bool is_a, int64_t extent, int64_t k)
      : k_(k),
        panels_((extent + width(gemm, is_a) - 1) / width(gemm, is_a)),
        steps_((k + gemm.kr - 1) / gemm.kr),
        slice_steps_(gemm.slice_steps),
        kr_(gemm.kr),
        step_bytes_(is_a ? gemm.a_step : gemm.b_step) {}

  int64_t panels() const { return panels_; }
  int64_t bytes() const { return panels_ * steps_ * step_bytes_; }
  int64_t slices() const { return (steps_ + slice_steps_ - 1) / slice_steps_; }
  int64_t steps(int64_t slice) const { return std::min(slice_steps_, steps_ - slice * slice_steps_); }
  int64_t panel_bytes(int64_t slice) const { return steps(slice) * step_bytes_; }
  int64_t offset(int64_t slice, int64_t panel) const {
    return slice * slice_steps_ * step_bytes_ * panels_ + panel * panel_bytes(slice);
  }

  // Calls pack(source of one slice, address) for every slice of a panel; `source` has all of k in each row.
  template <typename Pack>
  void each_slice(isa::PackSource source, int64_t panel, std::byte* base, Pack pack) const {
    const std::byte* first = static_cast<const std::byte*>(source.rows.data);
    for (int64_t s = 0; s < slices(); ++s) {
      const int64_t k = s * slice_steps_ * kr_;
      source.rows.data = first + k * isa::elem_bytes(source.type);
      source.k = std::min(slice_steps_ * kr_, k_ - k);
      pack(source, base + offset(s, panel));
    }
  }
  // The same from k-major rows.
  template <typename Pack>
  void each_slice_of_columns(isa::PackSource source, int64_t panel, std::byte* base, Pack pack) const {
    const std::byte* first = static_cast<const std::byte*>(source.rows.data);
    for (int64_t s = 0; s < slices(); ++s) {
      const int64_t k = s * slice_steps_ * kr_;
      source.rows.data = first + k * source.rows.stride * isa::elem_bytes(source.type);
      source.k = std::min(slice_steps_ * kr_, k_ - k);
      pack(source, base + offset(s, panel));
    }
  }

  // Calls pack(first k, count of k, address) for every slice of a panel.
  template <typename Pack>
  void each_range(int64_t panel, std::byte* base, Pack pack) const {
    for (int64_t s = 0; s < slices(); ++s) {
      const int64_t k = s * slice_steps_ * kr_;
      pack(k, std::min(slice_steps_ * kr_, k_ - k), base + offset(s, panel));
    }
  }

 private:
  static int64_t width(const isa::Gemm& gemm, bool is_a) { return is_a ? gemm.mr : gemm.nr; }

  int64_t k_ = 0, panels_ = 0, steps_ = 0, slice_steps_ = 1, kr_ = 1, step_bytes_ = 0;
};

// C as contiguous panels of contiguous tiles, m_panels to a column of panels.
inline isa::ResultLayout tiled_result(const isa::Gemm& gemm, int64_t m_panels) {
  isa::ResultLayout layout;
  const int64_t tile = int64_t{1} * gemm.tile_rows * gemm.tile_cols;
  layout.row = gemm.tile_cols;
  layout.tile_right = tile;
  layout.tile_down = gemm.nr / gemm.tile_cols * tile;
  layout.m_panel = int64_t{1} * gemm.mr * gemm.nr;
  layout.n_panel = layout.m_panel * m_panels;
  return layout;
}

// C as plain rows.
inline isa::ResultLayout row_major_result(const isa::Gemm& gemm, int64_t stride) {
  isa::ResultLayout layout;
  layout.row = stride;
  layout.tile_right = gemm.tile_cols;
  layout.tile_down = gemm.tile_rows * stride;
  layout.m_panel = gemm.mr * stride;
  layout.n_panel = gemm.nr;
  return layout;
}

inline void set_layout(isa::StoreArgs& store, const isa::Gemm& gemm, const isa::ResultLayout& layout) {
  store.layout = layout;
  store.mr = gemm.mr;
  store.nr = gemm.nr;
  store.tile_rows = gemm.tile_rows;
  store.tile_cols = gemm.tile_cols;
}

}  // namespace h3
