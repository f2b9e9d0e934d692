// Weights into storage formats: the reference quantisers, byte for byte those of the formats' own tools (spec formats
// A.7, C.4, C.5), with the error they leave. Rows are independent and shared out over the pool; the bytes do not depend
// on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "quant/matrix.h"

namespace h3 {

// Rows [first, first + count) of the weights as f32 into out[count, cols]. Called for ascending ranges, once or twice
// over all rows (formats with scales that all rows share), so that a matrix need never be whole in memory.
struct RowReader {
  int64_t rows = 0, cols = 0;
  std::function<void(int64_t first, int64_t count, float* out)> read;
};

// How far the decoded weights lie from the given ones.
struct ErrorStats {
  double squares = 0, reference = 0;  // sums of (w' - w)^2 and w^2
  double max_abs = 0;
  double rel_l2() const;  // 0 for all-zero weights that stay so
  void add(const ErrorStats& other);
};

struct EncodeOptions {
  bool search = true;  // q4tp, q2tp: try neighbouring rungs; off only to reproduce files made without
  float global = 0;    // nvfp4: the scale of the tensor; 0 = from the largest weight
  int rotation = 256;  // int8_convrot: columns of a group
};

struct EncodedMatrix {
  StoredMatrix matrix;  // owns its bytes
  ErrorStats error;
};

// Why weights of this shape cannot be in the format ("40 columns are not a multiple of 32"); empty when they can.
std::string encode_refusal(Format format, int64_t rows, int64_t cols, const EncodeOptions& options = {});

// Formats: f32, f16 and bf16, q8_row, q8_2f, q4tp, q2tp, int8_convrot, nvfp4. f16 rounds as CMF writers do. Error(data)
// naming the tensor for a refusal, a weight that is not finite, or one beyond what the scales of the format hold.
EncodedMatrix encode_matrix(Format format, const RowReader& source, const std::string& tensor, ThreadPool& pool,
                            const EncodeOptions& options = {});

RowReader reader_of(const MatrixSource& source);  // non-owning

}  // namespace h3
