// Weight storage formats: one row per format. Adding one means a codec header (codec/packed.h says what it holds), its
// include in quant/codecs.h, a row here and a vector file in tests/data/codec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace h3 {

// X(codec and enumerator, name as printed by `info`, bits per weight, columns per block, filler of the row table)
// Numbers: never the weight of a matmul on a card.
#define H3_NUMBER_FORMATS(X)            \
  X(f64, "f64", 64, 1, no_table)        \
  X(i64, "i64", 64, 1, no_table)        \
  X(i32, "i32", 32, 1, no_table)        \
  X(i16, "i16", 16, 1, no_table)        \
  X(i8, "i8", 8, 1, no_table)           \
  X(u64, "u64", 64, 1, no_table)        \
  X(u32, "u32", 32, 1, no_table)        \
  X(u16, "u16", 16, 1, no_table)        \
  X(u8, "u8", 8, 1, no_table)           \
  X(boolean, "bool", 8, 1, no_table)    \
  X(f8_e8m0, "f8_e8m0", 8, 1, no_table) \
  X(noise, "noise", 16, 1, no_table) /* planned for as bf16 */

#define H3_WEIGHT_FORMATS(X)                      \
  X(f32, "f32", 32, 1, no_table)                  \
  X(bf16, "bf16", 16, 1, no_table)                \
  X(f16, "f16", 16, 1, no_table)                  \
  X(f8_e4m3, "f8_e4m3", 8, 1, no_table)           \
  X(f8_e5m2, "f8_e5m2", 8, 1, no_table)           \
  X(q8_row, "q8_row", 8, 1, no_table)             \
  X(q8_2f, "q8_2f", 8, 1, no_table)               \
  X(q4tp, "q4tp", 4.15625, 32, q4tp_begin)        \
  X(q2tp, "q2tp", 2.15625, 32, q2tp_begin)        \
  X(int8_convrot, "int8_convrot", 8, 1, no_table) \
  X(w4a8, "w4a8", 4.5, 16, no_table)              \
  X(nvfp4, "nvfp4", 4.5, 1, no_table)             \
  X(q8_0, "Q8_0", 8.5, 32, no_table)              \
  X(q4_0, "Q4_0", 4.5, 32, no_table)              \
  X(q4_1, "Q4_1", 5, 32, no_table)                \
  X(q5_0, "Q5_0", 5.5, 32, no_table)              \
  X(q5_1, "Q5_1", 6, 32, no_table)                \
  X(q2_k, "Q2_K", 2.625, 256, no_table)           \
  X(q3_k, "Q3_K", 3.4375, 256, no_table)          \
  X(q4_k, "Q4_K", 4.5, 256, no_table)             \
  X(q5_k, "Q5_K", 5.5, 256, no_table)             \
  X(q6_k, "Q6_K", 6.5625, 256, no_table)

enum class Format : uint8_t {
#define H3_ENUMERATOR(codec, name, bits, block, begin) codec,
  H3_WEIGHT_FORMATS(H3_ENUMERATOR) H3_NUMBER_FORMATS(H3_ENUMERATOR)
#undef H3_ENUMERATOR
};

struct StoredMatrix;

struct FormatRow {
  Format format;
  const char* name;
  double bits_per_weight;  // without what a row or a tensor stores once
  int block_cols;          // columns must be a multiple of this
  // Bytes of StoredMatrix::data, exactly.
  int64_t (*data_bytes)(int64_t rows, int64_t cols);
  // Decodes row r of the matrix into out[cols]: the weights of the layer to the bit, rotated back and with
  // pre_scale applied where the format has them.
  void (*decode_row)(const StoredMatrix& matrix, int64_t row, float* out);
};

const FormatRow& row_of(Format format);

// Throws Error(data) naming the tensor and the format unless the columns fit the blocks and every plane has the size
// that the shape asks for. Readers call it; the codecs then trust the matrix.
void check_matrix(const StoredMatrix& matrix, const std::string& tensor);

}  // namespace h3
