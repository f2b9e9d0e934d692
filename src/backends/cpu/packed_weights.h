// Weights that stay in their stored format and are expanded a few rows at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/cpu/isa/kernels.h"
#include "ops/ops.h"
#include "quant/matrix.h"

namespace h3 {

class PackedWeights {
 public:
  PackedWeights() = default;
  PackedWeights(MatrixSource source, const isa::Level& kernels);

  bool empty() const { return parts_.empty(); }
  int64_t stored_bytes() const { return source_.stored_bytes(); }
  // Rows [first, first + count) into out[count, cols]. Both give the bits of MatrixSource::decode_rows, the second as
  // int8 with the inverse of each row (codec/int8_row.h). staging [cols].
  void floats(int64_t first, int64_t count, float* out) const;
  void codes(int64_t first, int64_t count, const float* inverse, int8_t* out, float* staging) const;

  // Rows as one stored matrix has them, for kernels that read a format themselves.
  struct Stored {
    const char* format = nullptr;  // null: the rows are of two matrices, rotated, or scaled by column
    PackedRows rows;
    int64_t first = 0;  // of the asked rows in it
  };
  Stored stored(int64_t first, int64_t count) const;

 private:
  struct Part {
    int64_t start;  // of these rows in the whole
    int64_t first;  // of these rows in the stored matrix
    PackedRows rows;
    const isa::Expander* expander;  // null: through the format's own decode_row
  };
  const Part& part_of(int64_t row) const;
  void one(int64_t row, float* out) const;

  MatrixSource source_;
  std::vector<Part> parts_;
};

// Whether a Linear that computes in this type keeps weights packed, because a copy in the type of its operands would be
// larger than the file: formats of fewer than eight bits always, those of about eight unless it computes in int8.
bool stays_packed(const MatrixSource& source, Compute compute);
bool stays_packed(Format format, Compute compute);
// Above 0: int8 codes of columns rotated in groups of so many, which rotated activations meet as they are
// (Linear::rotation).
int64_t rotation_of_codes(const MatrixSource& source);
// Of such a source: its codes as numbers, and the scale of every row.
MatrixSource codes_of(const MatrixSource& source);
std::vector<float> scales_of(const MatrixSource& source);
// Why panels of int8 are not the codes that the file has, which are int8 too; "" when they are, or when it has none.
std::string requantised(const MatrixSource& source);

}  // namespace h3
