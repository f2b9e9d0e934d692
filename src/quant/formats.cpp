#include "quant/formats.h"

#include <cstring>

#include "base/error.h"
#include "codec/float8.h"
#include "codec/scalar.h"
#include "quant/matrix.h"

namespace h3 {
namespace {

template <typename T, typename Convert>
void decode_scalars(const StoredMatrix& matrix, int64_t row, float* out, Convert convert) {
  const std::byte* p = matrix.data.data() + row * matrix.cols * static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < matrix.cols; ++i) {
    T value;
    std::memcpy(&value, p + i * static_cast<int64_t>(sizeof(T)), sizeof(T));  // tensors may be unaligned
    out[i] = convert(value);
  }
}

template <typename T>
void decode_number(const StoredMatrix& matrix, int64_t row, float* out) {
  decode_scalars<T>(matrix, row, out, [](T value) { return static_cast<float>(value); });
}

void decode_bf16(const StoredMatrix& matrix, int64_t row, float* out) {
  decode_scalars<uint16_t>(matrix, row, out, bf16_to_f32);
}

void decode_f16(const StoredMatrix& matrix, int64_t row, float* out) {
  decode_scalars<uint16_t>(matrix, row, out, f16_to_f32);
}

void decode_e4m3(const StoredMatrix& matrix, int64_t row, float* out) {
  decode_scalars<uint8_t>(matrix, row, out, e4m3_to_f32);
}

void decode_e5m2(const StoredMatrix& matrix, int64_t row, float* out) {
  decode_scalars<uint8_t>(matrix, row, out, e5m2_to_f32);
}

void decode_e8m0(const StoredMatrix& matrix, int64_t row, float* out) {
  decode_scalars<uint8_t>(matrix, row, out, e8m0_to_f32);
}

void decode_bool(const StoredMatrix& matrix, int64_t row, float* out) {
  decode_scalars<uint8_t>(matrix, row, out, [](uint8_t value) { return value != 0 ? 1.0f : 0.0f; });
}

constexpr FormatRow kFormats[] = {
    {Format::f32, "f32", 32, 1, decode_number<float>},
    {Format::bf16, "bf16", 16, 1, decode_bf16},
    {Format::f16, "f16", 16, 1, decode_f16},
    {Format::f64, "f64", 64, 1, decode_number<double>},
    {Format::i64, "i64", 64, 1, decode_number<int64_t>},
    {Format::i32, "i32", 32, 1, decode_number<int32_t>},
    {Format::i16, "i16", 16, 1, decode_number<int16_t>},
    {Format::i8, "i8", 8, 1, decode_number<int8_t>},
    {Format::u64, "u64", 64, 1, decode_number<uint64_t>},
    {Format::u32, "u32", 32, 1, decode_number<uint32_t>},
    {Format::u16, "u16", 16, 1, decode_number<uint16_t>},
    {Format::u8, "u8", 8, 1, decode_number<uint8_t>},
    {Format::boolean, "bool", 8, 1, decode_bool},
    {Format::f8_e4m3, "f8_e4m3", 8, 1, decode_e4m3},
    {Format::f8_e5m2, "f8_e5m2", 8, 1, decode_e5m2},
    {Format::f8_e8m0, "f8_e8m0", 8, 1, decode_e8m0},
};

}  // namespace

const FormatRow& row_of(Format format) {
  for (const FormatRow& row : kFormats) {
    if (row.format == format) return row;
  }
  H3_ASSERT(false);
  return kFormats[0];
}

}  // namespace h3
