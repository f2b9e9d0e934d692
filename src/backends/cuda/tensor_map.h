// Tiles of device memory as the copy engine of compute capability 9.0 fetches them (kernels/hopper.cuh).
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

namespace h3::cuda {

int processors_of_this_card();

// Whether this card is of compute capability 9.0, this build has code for it, and the driver encodes maps.
bool has_tensor_maps();

// Memory of `rank` dimensions, the first contiguous, and the box that one copy fetches: rows of 128 bytes, which arrive
// swizzled. Zeros stand for what lies outside.
struct TiledMemory {
  const void* base;
  CUtensorMapDataType type;
  std::array<int64_t, 4> sizes;    // elements
  std::array<int64_t, 3> strides;  // bytes, of all but the first dimension
  std::array<int, 3> box;          // elements of the first three dimensions; one of the last
  int rank = 4;
};
CUtensorMap tensor_map(const TiledMemory& memory, const char* what);  // Error(device) names `what`

// [heads, rows, 128] bf16 as boxes of `rows_of_box` rows of one head: dimensions (64 channels, row, half, head).
CUtensorMap head_map(const void* base, int64_t rows, int64_t row_stride, int heads, int64_t head_stride,
                     int rows_of_box, const char* what);

}  // namespace h3::cuda
