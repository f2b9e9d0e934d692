// Element types of activations, parameters and index tensors. Block formats of packed weights are in quant/formats.h.
#pragma once

#include <cstdint>

namespace h3 {

enum class DType : uint8_t { f32, bf16, f16, f64, i64, i32, i8, u8 };

constexpr int64_t size_of(DType type) {
  switch (type) {
    case DType::f64: case DType::i64: return 8;
    case DType::f32: case DType::i32: return 4;
    case DType::bf16: case DType::f16: return 2;
    case DType::i8: case DType::u8: return 1;
  }
  return 0;
}

constexpr bool is_float(DType type) {
  return type == DType::f32 || type == DType::bf16 || type == DType::f16 || type == DType::f64;
}

const char* name_of(DType type);  // "f32", "bf16", ...

}  // namespace h3
