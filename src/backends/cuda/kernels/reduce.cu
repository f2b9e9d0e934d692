// Reductions with a fixed order: equal inputs give equal bits.
#include "backends/cuda/kernels/common.cuh"

namespace h3::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kParts = 528;

template <typename T>
__global__ void __launch_bounds__(kThreads) l1_parts_kernel(const T* a, int64_t a_stride, const T* b, int64_t b_stride,
                                                            int64_t cols, int64_t total, float* parts) {
  __shared__ float reduce[33];
  float difference = 0, norm = 0;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < total; i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / cols, e = i % cols;
    const float x = to_float(a[row * a_stride + e]), y = to_float(b[row * b_stride + e]);
    difference += fabsf(round_to<T>(x - y));
    norm += fabsf(y);
  }
  difference = block_sum(difference, reduce);
  norm = block_sum(norm, reduce);
  if (threadIdx.x == 0) {
    parts[2 * blockIdx.x] = difference;
    parts[2 * blockIdx.x + 1] = norm;
  }
}

__global__ void __launch_bounds__(kThreads) l1_total_kernel(const float* parts, float* out) {
  __shared__ float reduce[33];
  float difference = 0, norm = 0;
  for (int i = threadIdx.x; i < kParts; i += kThreads) {
    difference += parts[2 * i];
    norm += parts[2 * i + 1];
  }
  difference = block_sum(difference, reduce);
  norm = block_sum(norm, reduce);
  if (threadIdx.x == 0) out[0] = difference, out[1] = norm;
}

template <typename T>
__global__ void finite_kernel(const T* x, int64_t stride, int64_t cols, int64_t total, int32_t* flag) {
  bool bad = false;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < total; i += int64_t{gridDim.x} * kThreads) {
    bad = bad || !isfinite(to_float(x[i / cols * stride + i % cols]));
  }
  if (__syncthreads_or(bad) && threadIdx.x == 0) atomicOr(flag, 1);
}

// [rows, cols] of a view that is contiguous, or rank 2 with dense rows.
void as_rows(const View& view, int64_t& rows, int64_t& cols, int64_t& stride) {
  if (view.rank == 2 && view.stride[1] == 1) {
    rows = view.dim[0], cols = view.dim[1], stride = view.stride[0];
    return;
  }
  H3_ASSERT(view.contiguous());
  rows = 1, cols = view.elements(), stride = 0;
}

}  // namespace

void CudaOps::l1_pair(const View& a, const View& b, const View& out) {
  int64_t rows, cols, a_stride, b_rows, b_cols, b_stride;
  as_rows(a, rows, cols, a_stride);
  as_rows(b, b_rows, b_cols, b_stride);
  H3_ASSERT(rows * cols == b_rows * b_cols && a.type == b.type && out.type == DType::f32);
  if (cols != b_cols) {  // one contiguous, one seen as rows
    H3_ASSERT(a.contiguous() && b.contiguous());
    cols = rows * cols, rows = 1, a_stride = b_stride = 0;
  }
  auto* parts = static_cast<float*>(scratch(kReduceScratch, kParts * 8));
  H3_FLOAT_TYPE(a.type, launch(stream(), "l1_pair", l1_parts_kernel<T>, LaunchShape{dim3(kParts), dim3(kThreads), 0},
                               as<const T>(a), a_stride, as<const T>(b), b_stride, cols, rows * cols, parts);)
  launch(stream(), "l1_pair", l1_total_kernel, LaunchShape{dim3(1), dim3(kThreads), 0}, parts, as<float>(out));
}

void CudaOps::check_finite(const View& x, const View& flags) {
  int64_t rows, cols, stride;
  as_rows(x, rows, cols, stride);
  const int64_t total = rows * cols;
  const LaunchShape shape{dim3(static_cast<unsigned>(std::min<int64_t>(ceil_div(total, kThreads), kParts))),
                          dim3(kThreads), 0};
  H3_FLOAT_TYPE(x.type, launch(stream(), "check_finite", finite_kernel<T>, shape, as<const T>(x), stride, cols, total,
                               as<int32_t>(flags));)
}

}  // namespace h3::cuda
