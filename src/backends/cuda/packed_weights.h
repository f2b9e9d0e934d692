// Weights that stay in their stored format in the card's memory; kernels/dequant.cu expands rows of them for a matmul.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "backends/cuda/memory.h"
#include "quant/matrix.h"

namespace h3::cuda {

// One stored format's share of a weight: output rows [first, first + rows.rows).
struct PackedSegment {
  Format format = Format::f32;
  int64_t first = 0;
  PackedRows rows;  // the pointers are the card's; every plane starts at a multiple of 256
  Buffer bytes;
};

std::vector<PackedSegment> upload_packed(CudaDevice& device, const MatrixSource& source, const char* label);

// Output rows [first, first + count) as they are multiplied: dst [count, cols] dense on the card, 16-byte aligned, in
// f32, bf16 or f16. Values are those of FormatRow::decode_row (rotated rows up to the order of their sums), rounded
// once to `type`; f16 saturates.
void expand_packed(cudaStream_t stream, const std::vector<PackedSegment>& segments, int64_t first, int64_t count,
                   void* dst, DType type);

// kernels/dequant.cu: rows [first, first + count) of one matrix.
void dequantise_packed(cudaStream_t stream, Format format, const PackedRows& m, int64_t first, int64_t count, void* dst,
                       DType type);

}  // namespace h3::cuda
