// Weights that stay in their stored format in the card's memory; kernels/dequant.cu expands rows of them for a matmul.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "backends/cuda/memory.h"
#include "backends/cuda/weight_stream.h"
#include "quant/matrix.h"

namespace h3::cuda {

// One stored format's share of a weight: output rows [first, first + rows.rows).
struct PackedSegment {
  Format format = Format::f32;
  int64_t first = 0;
  PackedRows rows;                             // without its planes
  int64_t planes[5] = {-1, -1, -1, -1, -1};    // where each begins, multiples of 256; -1 = there is none
  Buffer bytes;                                // empty: the planes travel with a group
  PackedRows at(const std::byte* base) const;  // with the planes behind `base`
};

// On the card, or in `group` where there is one.
std::vector<PackedSegment> upload_packed(CudaDevice& device, const MatrixSource& source, StreamGroup* group,
                                         const char* label);

// Output rows [first, first + count) as they are multiplied: dst [count, cols] dense on the card, 16-byte aligned, in
// f32, bf16 or f16. `group` is that of upload_packed, entered. Values are those of FormatRow::decode_row (rotated rows
// up to the order of their sums), rounded
// once to `type`; f16 saturates.
void expand_packed(cudaStream_t stream, const std::vector<PackedSegment>& segments, const StreamGroup* group,
                   int64_t first, int64_t count, void* dst, DType type);

// kernels/dequant.cu: rows [first, first + count) of one matrix.
void dequantise_packed(cudaStream_t stream, Format format, const PackedRows& m, int64_t first, int64_t count, void* dst,
                       DType type);

}  // namespace h3::cuda
