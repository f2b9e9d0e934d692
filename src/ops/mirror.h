// Copies of views on the host, their gaps included: how the shadow decorator sees memory of a device.
#pragma once

#include <cstddef>
#include <cstring>

#include "tensor/rows.h"
#include "tensor/tensor.h"

namespace h3 {

// The bytes from the first to the last element of a view, those between its rows included.
inline View span_of(const View& view) {
  int64_t last = 0;
  for (int i = 0; i < view.rank; ++i) last += (view.dim[i] - 1) * view.stride[i];
  const int64_t bytes = view.elements() == 0 ? 0 : (last + 1) * size_of(view.type);
  return make_view(*view.device, view.data, DType::u8, {bytes});
}

inline bool overlap(const View& a, const View& b) {
  return a.device == b.device && a.data < b.data + b.bytes() && b.data < a.data + a.bytes();
}

// A copy of a view on the host, with the same strides.
struct Mirror {
  View original;
  Tensor bytes;
  View view;

  Mirror(Device& host_device, const View& of) : original(of) {
    if (of.empty()) return;
    const View span = span_of(of);
    bytes = Tensor(host_device, DType::u8, {span.bytes()}, "shadow copy");
    refresh();
    view = of;
    view.device = &host_device;
    view.data = bytes.view.data;
  }
  void refresh() {
    const View span = span_of(original);
    if (span.bytes() > 0) original.device->download(span, bytes.view.data);
  }
};

inline void copy_elements(const View& from, const View& to) {
  const int64_t size = size_of(from.type), length = rows::row_length(from);
  const int64_t step = from.rank == 0 ? size : from.stride[from.rank - 1] * size;
  for (int64_t row = 0; row < rows::row_count(from); ++row) {
    const std::byte* a = rows::row_address(from, row);
    std::byte* b = rows::row_address(to, row);
    for (int64_t i = 0; i < length; ++i) std::memcpy(b + i * step, a + i * step, static_cast<size_t>(size));
  }
}

// Between two mirrors of one span: the elements of a view that lie in it.
inline void take_elements(const Mirror& from, const View& view, Mirror& to) {
  if (view.elements() == 0 || view.device != from.original.device) return;
  const int64_t size = size_of(view.type), length = rows::row_length(view), bytes = from.bytes.view.bytes();
  const int64_t step = view.rank == 0 ? size : view.stride[view.rank - 1] * size;
  for (int64_t row = 0; row < rows::row_count(view); ++row) {
    const int64_t first = rows::row_address(view, row) - from.original.data;
    for (int64_t at = first; at < first + length * step; at += step) {
      if (at < 0 || at + size > bytes) continue;
      std::memcpy(to.bytes.view.data + at, from.bytes.view.data + at, static_cast<size_t>(size));
    }
  }
}

}  // namespace h3
