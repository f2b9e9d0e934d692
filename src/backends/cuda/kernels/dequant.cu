// Packed rows to rows of numbers, instantiated from the codecs of every weight format. Eight columns a thread, so that
// a warp reads and writes consecutive bytes; a block takes a few rows and keeps their tables (ladders of scales) in
// shared memory. Rotated formats go through shared memory for the way back.
#include <type_traits>

#include "backends/cuda/kernels/common.cuh"
#include "backends/cuda/packed_weights.h"
#include "codec/rotation.h"
#include "quant/codecs.h"

namespace h3::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 4;     // of a block
constexpr int kTile = 1024;  // columns of a block that rotates, at least a group
static_assert(kTile <= kMaxRotation);

template <typename T>
__device__ float finished(const PackedRows& m, float value, int64_t col) {
  if (m.pre_scale != nullptr) value *= reinterpret_cast<const float*>(m.pre_scale)[col];
  if constexpr (std::is_same_v<T, __half>) value = value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value;
  return value;
}

// Eight columns of an output row; rows are whole vectors when their length is a multiple of 8.
template <typename T>
__device__ void store_eight(const PackedRows& m, const float* values, int64_t col, T* row) {
  Vec8<T> out;
#pragma unroll
  for (int i = 0; i < 8; ++i) out.v[i] = finished<T>(m, values[i], col + i);
  if (m.cols % 8 == 0) {
    out.store(row + col);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) row[col + i] = from_float<T>(out.v[i]);
}

template <typename Codec, typename T>
__global__ void __launch_bounds__(kThreads) expand_kernel(const PackedRows m, int64_t first, int64_t count, T* dst) {
  __shared__ float tables[Codec::kTable ? kRows : 1][kRowTable];
  const int64_t base = int64_t{blockIdx.x} * kRows;
  const int rows = count - base < kRows ? static_cast<int>(count - base) : kRows;
  if constexpr (Codec::kTable) {
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0 && warp < rows) Codec::begin(m, first + base + warp, tables[warp]);
    __syncthreads();
  }
  for (int r = 0; r < rows; ++r) {
    const float* table = Codec::kTable ? tables[r] : nullptr;
    T* out = dst + (base + r) * m.cols;
    for (int64_t col = threadIdx.x * 8; col < m.cols; col += kThreads * 8) {
      if (m.cols - col >= 8) {
        float values[8];
        Codec::decode(m, table, first + base + r, col, 8, values);
        store_eight(m, values, col, out);
        continue;
      }
      for (int64_t c = col; c < m.cols; ++c) {
        float value;
        Codec::decode(m, table, first + base + r, c, 1, &value);
        out[c] = from_float<T>(finished<T>(m, value, c));
      }
    }
  }
}

// One row, columns [start, start + tile): whole groups, at most kMaxRotation columns.
template <typename Codec, typename T>
__global__ void __launch_bounds__(kThreads)
    expand_rotated_kernel(const PackedRows m, int64_t first, int64_t tile, T* dst) {
  __shared__ float shared[kMaxRotation];
  const int64_t row = blockIdx.x, start = int64_t{blockIdx.y} * tile;
  const int n = static_cast<int>(m.cols - start < tile ? m.cols - start : tile);
  for (int i = threadIdx.x * 8; i < n; i += kThreads * 8) {
    if (n - i >= 8) {
      float values[8];
      Codec::decode(m, nullptr, first + row, start + i, 8, values);
#pragma unroll
      for (int j = 0; j < 8; ++j) shared[i + j] = values[j];
      continue;
    }
    for (int j = i; j < n; ++j) Codec::decode(m, nullptr, first + row, start + j, 1, shared + j);
  }
  __syncthreads();
  for (int stride = 1; stride < m.rotation; stride *= 4) {
    for (int t = threadIdx.x; t < n / 4; t += kThreads) {
      rotate_four(shared, t / stride * 4 * stride + t % stride, stride);
    }
    __syncthreads();
  }
  const float factor = rotation_factor(m.rotation);
  T* out = dst + row * m.cols + start;
  for (int i = threadIdx.x; i < n; i += kThreads) {
    out[i] = from_float<T>(finished<T>(m, shared[i] * factor, start + i));
  }
}

template <typename Codec>
void expand(cudaStream_t stream, const PackedRows& m, int64_t first, int64_t count, void* dst, DType type) {
  if (Codec::kRotates && m.rotation > 0) {
    if constexpr (Codec::kRotates) {
      const int64_t tile = m.rotation < kTile ? kTile / m.rotation * m.rotation : m.rotation;
      const LaunchShape shape{dim3(static_cast<unsigned>(count), static_cast<unsigned>(ceil_div(m.cols, tile))),
                              dim3(kThreads), 0};
      H3_FLOAT_TYPE(type, launch(stream, "expand_rotated", expand_rotated_kernel<Codec, T>, shape, m, first, tile,
                                 static_cast<T*>(dst));)
    }
    return;
  }
  const LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(count, kRows))), dim3(kThreads), 0};
  H3_FLOAT_TYPE(type, launch(stream, "expand", expand_kernel<Codec, T>, shape, m, first, count, static_cast<T*>(dst));)
}

}  // namespace

void dequantise_packed(cudaStream_t stream, Format format, const PackedRows& m, int64_t first, int64_t count, void* dst,
                       DType type) {
  if (m.cols == 0 || count == 0) return;
  switch (format) {
#define H3_EXPAND(codec, name, bits, block, begin) \
  case Format::codec: expand<codec##_codec>(stream, m, first, count, dst, type); break;
    H3_WEIGHT_FORMATS(H3_EXPAND)
#undef H3_EXPAND
    default: H3_ASSERT(false);  // numbers are expanded on the host
  }
}

}  // namespace h3::cuda
