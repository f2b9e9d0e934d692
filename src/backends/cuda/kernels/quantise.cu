// Casts and quantisation around the matmuls. The int8 arithmetic is codec/int8_row.h, so the integers agree with the
// CPU.
#include "backends/cuda/kernels/float8.cuh"
#include "codec/int8_row.h"

namespace h3::cuda {
namespace {

constexpr int kThreads = 256;

template <typename TS, typename TD>
__global__ void cast_kernel(const TS* src, int64_t stride, TD* dst, int64_t cols, int64_t total, bool saturate) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < total; i += int64_t{gridDim.x} * kThreads) {
    float v = to_float(src[i / cols * stride + i % cols]);
    if (saturate) v = v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v;
    dst[i] = from_float<TD>(v);
  }
}

template <typename T>
__global__ void noise_kernel(NoiseWeights noise, int64_t first, int64_t count, T* dst) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    dst[i] = from_float<T>(noise_value(noise, first + i));
  }
}

template <typename T>
__global__ void add_kernel(const float* sum, T* y, int64_t stride, int64_t cols, int64_t total) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < total; i += int64_t{gridDim.x} * kThreads) {
    T& out = y[i / cols * stride + i % cols];
    out = from_float<T>(to_float(out) + sum[i]);
  }
}

template <typename T>
__global__ void bias_kernel(const float* acc, const float* bias, T* y, int64_t stride, int64_t cols, int64_t total,
                            bool onto) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < total; i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / cols, e = i % cols;
    float v = bias != nullptr ? acc[i] + bias[e] : acc[i];
    if (onto) v += to_float(y[row * stride + e]);
    y[row * stride + e] = from_float<T>(v);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    quantise_kernel(const T* x, int64_t stride, int8_t* q, int64_t pitch, float* scale, int n) {
  __shared__ uint32_t tops[kThreads / 32];
  const T* row = x + blockIdx.x * stride;
  uint32_t top = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) top = max(top, magnitude_bits(to_float(row[i])));
  const float absmax = block_max<kThreads>(top, tops), inverse = int8_row_inverse(absmax);
  if (threadIdx.x == 0) scale[blockIdx.x] = int8_row_scale(absmax);
  for (int i = threadIdx.x; i < pitch; i += kThreads) {
    q[blockIdx.x * pitch + i] = i < n ? int8_row_quantise(to_float(row[i]), inverse) : int8_t{0};
  }
}

template <typename T, bool kVec>
__device__ inline void load_eight(Vec8<T>& v, const T* p) {
  if constexpr (kVec) {
    v.load(p);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) v.v[i] = to_float(p[i]);
  }
}

// Two reads of the row, the second from the first-level cache: holding it in registers between them is slower, because
// fewer rows are under way (docs/measurements/018-fp8-and-branches.md).
template <typename T, bool kVec>
__global__ void __launch_bounds__(kThreads)
    quantise_float8_kernel(const T* x, int64_t stride, uint8_t* q, int64_t n, float* scale) {
  __shared__ uint32_t tops[kThreads / 32];
  const T* row = x + blockIdx.x * stride;
  uint32_t top = 0;
  Vec8<T> v;
  for (int64_t i = threadIdx.x * 8; i < n; i += kThreads * 8) {
    load_eight<T, kVec>(v, row + i);
#pragma unroll
    for (int e = 0; e < 8; ++e) top = max(top, magnitude_bits(v.v[e]));
  }
  const float absmax = block_max<kThreads>(top, tops), inverse = float8_row_inverse(absmax);
  if (threadIdx.x == 0) scale[blockIdx.x] = float8_row_scale(absmax);
  for (int64_t i = threadIdx.x * 8; i < n; i += kThreads * 8) {
    load_eight<T, kVec>(v, row + i);
    *reinterpret_cast<uint2*>(q + blockIdx.x * n + i) = float8_codes(v.v, inverse);
  }
}

template <typename A, typename T>
__global__ void dequantise_kernel(const A* acc, int64_t pitch, const float* row_scale, const float* column_scale,
                                  const float* bias, T* y, int64_t stride, int64_t cols, int64_t total, bool onto) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < total; i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / cols, e = i % cols;
    float v = static_cast<float>(acc[row * pitch + e]) * (row_scale[row] * column_scale[e]);
    if (bias != nullptr) v += bias[e];
    if (onto) v += to_float(y[row * stride + e]);
    y[row * stride + e] = from_float<T>(v);
  }
}

LaunchShape grid_for(int64_t n) {
  return {dim3(static_cast<unsigned>(std::min<int64_t>(ceil_div(n, kThreads), 132 * 32))), dim3(kThreads), 0};
}

}  // namespace

void fill_noise(cudaStream_t stream, const NoiseWeights& noise, int64_t first, int64_t count, void* dst, DType type) {
  H3_FLOAT_TYPE(type,
                launch(stream, "noise", noise_kernel<T>, grid_for(count), noise, first, count, static_cast<T*>(dst));)
}

void cast_rows(cudaStream_t stream, const View& src, void* dst, DType type, bool saturate) {
  const int64_t cols = src.dim[1], total = src.dim[0] * cols;
  H3_FLOAT_TYPE_AS(TS, src.type,
                   H3_FLOAT_TYPE_AS(TD, type,
                                    launch(stream, "cast", cast_kernel<TS, TD>, grid_for(total), as<const TS>(src),
                                           src.stride[0], static_cast<TD*>(dst), cols, total, saturate);))
}

void add_bias_round(cudaStream_t stream, const float* acc, const float* bias, const View& y, bool onto) {
  const int64_t cols = y.dim[1], total = y.dim[0] * cols;
  H3_FLOAT_TYPE(y.type, launch(stream, "bias", bias_kernel<T>, grid_for(total), acc, bias, as<T>(y), y.stride[0], cols,
                               total, onto);)
}

void add_rows(cudaStream_t stream, const float* sum, const View& y) {
  const int64_t cols = y.dim[1], total = y.dim[0] * cols;
  H3_FLOAT_TYPE(y.type,
                launch(stream, "add_rows", add_kernel<T>, grid_for(total), sum, as<T>(y), y.stride[0], cols, total);)
}

void quantise_rows(cudaStream_t stream, const View& x, int8_t* q, int64_t pitch, float* scale) {
  const LaunchShape shape{dim3(static_cast<unsigned>(x.dim[0])), dim3(kThreads), 0};
  H3_FLOAT_TYPE(x.type, launch(stream, "quantise_rows", quantise_kernel<T>, shape, as<const T>(x), x.stride[0], q,
                               pitch, scale, x.dim[1]);)
}

void dequantise_rows(cudaStream_t stream, const int32_t* acc, int64_t pitch, const float* row_scale,
                     const float* column_scale, const float* bias, const View& y, bool onto) {
  const int64_t cols = y.dim[1], total = y.dim[0] * cols;
  H3_FLOAT_TYPE(y.type, launch(stream, "dequantise_rows", dequantise_kernel<int32_t, T>, grid_for(total), acc, pitch,
                               row_scale, column_scale, bias, as<T>(y), y.stride[0], cols, total, onto);)
}

void quantise_float8_rows(cudaStream_t stream, const View& x, uint8_t* q, float* scale) {
  H3_ASSERT(x.dim[1] % 8 == 0);
  const LaunchShape shape{dim3(static_cast<unsigned>(x.dim[0])), dim3(kThreads), 0};
  const bool vectors = vectorises(x);
  H3_FLOAT_TYPE(x.type,
                const auto kernel = vectors ? quantise_float8_kernel<T, true> : quantise_float8_kernel<T, false>;
                launch(stream, "quantise_float8_rows", kernel, shape, as<const T>(x), x.stride[0], q, x.dim[1], scale);)
}

void scale_rows(cudaStream_t stream, const float* acc, int64_t pitch, const float* row_scale, const float* column_scale,
                const float* bias, const View& y, bool onto) {
  const int64_t cols = y.dim[1], total = y.dim[0] * cols;
  H3_FLOAT_TYPE(y.type, launch(stream, "scale_rows", dequantise_kernel<float, T>, grid_for(total), acc, pitch,
                               row_scale, column_scale, bias, as<T>(y), y.stride[0], cols, total, onto);)
}

}  // namespace h3::cuda
