// Weight storage formats: one row per format. Adding one means a codec header, a row here and a vector file.
#pragma once

#include <cstddef>
#include <cstdint>

namespace h3 {

enum class Format : uint8_t {
  f32,
  bf16,
  f16,
  f64,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0
};

struct StoredMatrix;

struct FormatRow {
  Format format;
  const char* name;  // as printed by `info`
  double bits_per_weight;
  int block_cols;  // columns must be a multiple of this
  // Decodes row r of the matrix into out[cols], exactly.
  void (*decode_row)(const StoredMatrix& matrix, int64_t row, float* out);
};

const FormatRow& row_of(Format format);

}  // namespace h3
