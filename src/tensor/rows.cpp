#include "tensor/rows.h"

namespace h3::rows {
namespace {

template <typename Out>
void load(const View& view, int64_t row, int64_t begin, int64_t count, Out* out) {
  const int64_t step = view.rank == 0 ? 1 : view.stride[view.rank - 1];
  const std::byte* base = row_address(view, row) + begin * step * size_of(view.type);
  switch (view.type) {
    case DType::f32: {
      const float* p = reinterpret_cast<const float*>(base);
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<Out>(p[i * step]);
      return;
    }
    case DType::bf16: {
      const uint16_t* p = reinterpret_cast<const uint16_t*>(base);
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<Out>(bf16_to_f32(p[i * step]));
      return;
    }
    case DType::f16: {
      const uint16_t* p = reinterpret_cast<const uint16_t*>(base);
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<Out>(f16_to_f32(p[i * step]));
      return;
    }
    case DType::f64: {
      const double* p = reinterpret_cast<const double*>(base);
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<Out>(p[i * step]);
      return;
    }
    default: H3_ASSERT(is_float(view.type));
  }
}

}  // namespace

void load_row(const View& view, int64_t row, int64_t begin, int64_t count, double* out) {
  load(view, row, begin, count, out);
}

std::vector<double> load_row(const View& view, int64_t row) {
  std::vector<double> values(static_cast<size_t>(row_length(view)));
  load_row(view, row, 0, row_length(view), values.data());
  return values;
}

void load_row(const View& view, int64_t row, int64_t begin, int64_t count, float* out) {
  load(view, row, begin, count, out);
}

void store_row(const View& view, int64_t row, int64_t begin, int64_t count, const double* values) {
  const int64_t step = view.rank == 0 ? 1 : view.stride[view.rank - 1];
  std::byte* base = row_address(view, row) + begin * step * size_of(view.type);
  switch (view.type) {
    case DType::f32: {
      float* p = reinterpret_cast<float*>(base);
      for (int64_t i = 0; i < count; ++i) p[i * step] = static_cast<float>(values[i]);
      return;
    }
    case DType::bf16: {
      uint16_t* p = reinterpret_cast<uint16_t*>(base);
      for (int64_t i = 0; i < count; ++i) p[i * step] = f32_to_bf16(to_odd(values[i]));
      return;
    }
    case DType::f16: {
      uint16_t* p = reinterpret_cast<uint16_t*>(base);
      for (int64_t i = 0; i < count; ++i) p[i * step] = f32_to_f16(to_odd(values[i]));
      return;
    }
    case DType::f64: {
      double* p = reinterpret_cast<double*>(base);
      for (int64_t i = 0; i < count; ++i) p[i * step] = values[i];
      return;
    }
    default: H3_ASSERT(is_float(view.type));
  }
}

}  // namespace h3::rows
