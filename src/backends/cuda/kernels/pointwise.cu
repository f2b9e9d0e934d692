// Elementwise operations. Views are walked as rows of their last axis; a grid-stride loop over (row, piece of row).
#include "backends/cuda/kernels/float8.cuh"

namespace h3::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFedPasses = 7;  // of a block over a whole row, 14336 at most

// Up to five axes, any strides, seen as [rows, n].
struct Strided {
  char* data;
  int rank;
  int64_t dim[kMaxRank], stride[kMaxRank];
};

Strided strided(const View& view) {
  Strided out{};
  out.data = reinterpret_cast<char*>(view.data);
  out.rank = view.rank;
  for (int i = 0; i < view.rank; ++i) {
    out.dim[i] = view.dim[i];
    out.stride[i] = view.stride[i];
  }
  return out;
}

// Element offset of linear index i.
__device__ inline int64_t offset_of(const Strided& v, int64_t i) {
  int64_t offset = 0;
  for (int axis = v.rank - 1; axis > 0; --axis) {
    offset += i % v.dim[axis] * v.stride[axis];
    i /= v.dim[axis];
  }
  return v.rank > 0 ? offset + i * v.stride[0] : 0;
}

template <typename T>
__device__ inline T& at(const Strided& v, int64_t i) {
  return reinterpret_cast<T*>(v.data)[offset_of(v, i)];
}

LaunchShape grid_for(int64_t n) {
  return {dim3(static_cast<unsigned>(std::min<int64_t>(ceil_div(n, kThreads), 132 * 32))), dim3(kThreads), 0};
}

template <typename TS, typename TD>
__global__ void copy_kernel(Strided src, Strided dst, int64_t n) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    if constexpr (std::is_same_v<TS, TD>)
      at<TD>(dst, i) = at<TS>(src, i);
    else
      at<TD>(dst, i) = from_float<TD>(to_float(at<TS>(src, i)));
  }
}

// Rows of 8-element vectors: [rows, n / 8] with row strides.
template <typename TS, typename TD>
__global__ void copy_rows_kernel(const TS* src, int64_t src_stride, TD* dst, int64_t dst_stride, int64_t vectors,
                                 int64_t total) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < total; i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / vectors, e = i % vectors * 8;
    Vec8<TS> v;
    v.load(src + row * src_stride + e);
    Vec8<TD> out;
#pragma unroll
    for (int k = 0; k < 8; ++k) out.v[k] = v.v[k];
    out.store(dst + row * dst_stride + e);
  }
}

template <typename T>
__global__ void fill_kernel(Strided dst, int64_t n, float value) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    at<T>(dst, i) = from_float<T>(value);
  }
}

// Items along axis 0. kMode 0: dst[i] = src[ids[i]]; 1: dst[ids[i]] = src[i]; 2: dst[ids[i]] += src[i].
template <typename TS, typename TD, int kMode>
__global__ void rows_kernel(Strided src, const int32_t* ids, Strided dst, int64_t item, int64_t total) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < total; i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / item, e = i % item;
    const int64_t from = kMode == 0 ? ids[row] : row, to = kMode == 0 ? row : ids[row];
    const float v = to_float(at<TS>(src, from * item + e));
    TD& out = at<TD>(dst, to * item + e);
    out = from_float<TD>(kMode == 2 ? to_float(out) + v : v);
  }
}

struct Silu {
  __device__ static float run(float v) { return v / (1.0f + expf(-v)); }
};
struct GeluTanh {
  __device__ static float run(float v) {
    return 0.5f * v * (1.0f + tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v)));
  }
};
struct GeluErf {
  __device__ static float run(float v) { return 0.5f * v * (1.0f + erff(v * 0.7071067811865476f)); }
};

template <typename TX, typename TY, typename F>
__global__ void unary_kernel(Strided x, Strided y, int64_t n) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    at<TY>(y, i) = from_float<TY>(F::run(to_float(at<TX>(x, i))));
  }
}

struct Add {
  __device__ static float run(float a, float b) { return a + b; }
};
struct Subtract {
  __device__ static float run(float a, float b) { return a - b; }
};
struct Multiply {
  __device__ static float run(float a, float b) { return a * b; }
};

template <typename TX, typename TY, typename TO, typename F>
__global__ void binary_kernel(Strided x, Strided y, Strided out, int64_t n) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    at<TO>(out, i) = from_float<TO>(F::run(to_float(at<TX>(x, i)), to_float(at<TY>(y, i))));
  }
}

// The same over whole tensors without gaps; 16-byte accesses.
template <typename T, typename F>
__global__ void __launch_bounds__(kThreads) dense_kernel(const T* x, const T* y, T* out, int64_t n) {
  const int64_t vectors = n / 8, step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < vectors; i += step) {
    Vec8<T> a, b;
    a.load(x + 8 * i);
    b.load(y + 8 * i);
#pragma unroll
    for (int e = 0; e < 8; ++e) a.v[e] = F::run(a.v[e], b.v[e]);
    a.store(out + 8 * i);
  }
  const int64_t last = 8 * vectors + threadIdx.x;
  if (blockIdx.x == 0 && last < n) out[last] = from_float<T>(F::run(to_float(x[last]), to_float(y[last])));
}

template <typename T>
__device__ inline float swiglu_value(float gate, float value) {
  // In narrow types the fast exponential and division are far inside the rounding.
  const float s = round_to<T>(sizeof(T) == 4 ? gate / (1.0f + expf(-gate)) : __fdividef(gate, 1.0f + __expf(-gate)));
  float product = value * s;
  if constexpr (std::is_same_v<T, __half>)
    product = product > 65504.0f ? 65504.0f : product < -65504.0f ? -65504.0f : product;
  return product;
}

// Grid: x over pieces of a row, y over rows (strided by gridDim.y). No division per element.
template <typename T, bool kVec>
__global__ void __launch_bounds__(kThreads)
    swiglu_kernel(const T* gate, int64_t gate_stride, const T* value, int64_t value_stride, T* out, int64_t out_stride,
                  int cols, int64_t rows) {
  constexpr int kStep = kVec ? 8 : 1;
  const int e = (blockIdx.x * kThreads + threadIdx.x) * kStep;
  if (e >= cols) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    if constexpr (kVec) {
      Vec8<T> g, v;
      g.load(gate + row * gate_stride + e);
      v.load(value + row * value_stride + e);
#pragma unroll
      for (int k = 0; k < 8; ++k) v.v[k] = swiglu_value<T>(g.v[k], v.v[k]);
      v.store(out + row * out_stride + e);
    } else {
      out[row * out_stride + e] = from_float<T>(
          swiglu_value<T>(to_float(gate[row * gate_stride + e]), to_float(value[row * value_stride + e])));
    }
  }
}

// A block has a row: its form for an eight-bit matmul follows in the same pass. `out` may be where `gate` is.
__global__ void __launch_bounds__(kThreads)
    swiglu_rows_kernel(const bf16* gate, int64_t gate_stride, const bf16* value, int64_t value_stride, bf16* out,
                       int64_t out_stride, int cols, Float8Rows float8) {
  __shared__ uint32_t tops[kThreads / 32];
  const int64_t row = blockIdx.x;
  bf16 held[kFedPasses][8];
  uint32_t top = 0;
#pragma unroll
  for (int p = 0; p < kFedPasses; ++p) {
    const int e = (p * kThreads + static_cast<int>(threadIdx.x)) * 8;
    if (e >= cols) continue;
    Vec8<bf16> g, v;
    g.load(gate + row * gate_stride + e);
    v.load(value + row * value_stride + e);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      held[p][k] = from_float<bf16>(swiglu_value<bf16>(g.v[k], v.v[k]));
      top = max(top, magnitude_bits(to_float(held[p][k])));
    }
  }
  const float absmax = block_max<kThreads>(top, tops),
              inverse = float8_row_inverse(absmax);  // all have read the row
  if (threadIdx.x == 0) float8.scale[row] = float8_row_scale(absmax);
#pragma unroll
  for (int p = 0; p < kFedPasses; ++p) {
    const int e = (p * kThreads + static_cast<int>(threadIdx.x)) * 8;
    if (e >= cols) continue;
    Vec8<bf16> v;
#pragma unroll
    for (int k = 0; k < 8; ++k) v.v[k] = to_float(held[p][k]);
    if (!float8.alone) v.store(out + row * out_stride + e);
    *reinterpret_cast<uint2*>(float8.codes + row * float8.pitch + e) = float8_codes(v.v, inverse);
  }
}

// Grid as in swiglu.
template <typename TX, typename TY, bool kVec>
__global__ void __launch_bounds__(kThreads) scaled_add_kernel(TX* x, int64_t x_stride, const TY* y, int64_t y_stride,
                                                              const float* scale, int cols, int64_t rows) {
  constexpr int kStep = kVec ? 8 : 1;
  const int e = (blockIdx.x * kThreads + threadIdx.x) * kStep;
  if (e >= cols) return;
  float s[kStep];
#pragma unroll
  for (int k = 0; k < kStep; ++k) s[k] = scale[e + k];
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    if constexpr (kVec) {
      Vec8<TX> out;
      Vec8<TY> branch;
      out.load(x + row * x_stride + e);
      branch.load(y + row * y_stride + e);
#pragma unroll
      for (int k = 0; k < 8; ++k) out.v[k] += round_to<TX>(s[k] * branch.v[k]);
      out.store(x + row * x_stride + e);
    } else {
      TX& out = x[row * x_stride + e];
      out = from_float<TX>(to_float(out) + round_to<TX>(s[0] * to_float(y[row * y_stride + e])));
    }
  }
}

__global__ void lincomb_kernel(const float* c, Strided a, Strided b, Strided out, int64_t n) {
  const float ca = c[0], cb = c[1];
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    at<float>(out, i) = ca * at<float>(a, i) + cb * at<float>(b, i);
  }
}

// kUnit clamps to [0, 1] and lets NaN through.
template <bool kUnit>
__global__ void affine_kernel(Strided x, const float* std, const float* mean, Strided y, int64_t per_channel,
                              int64_t n) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    const int64_t c = i / per_channel;
    float v = at<float>(x, i) * std[c] + mean[c];
    if (kUnit) v = v < 0.0f ? 0.0f : (v > 1.0f ? 1.0f : v);
    at<float>(y, i) = v;
  }
}

bool same_dims(const View& a, const View& b) {
  if (a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i) {
    if (a.dim[i] != b.dim[i]) return false;
  }
  return true;
}

void check_rows(const View& view) { H3_ASSERT(view.rank == 2 && view.stride[1] == 1); }

template <typename F>
void unary(cudaStream_t stream, const char* name, const View& x, const View& y) {
  H3_ASSERT(same_dims(x, y));
  const int64_t n = x.elements();
  H3_FLOAT_TYPE_AS(
      TX, x.type,
      H3_FLOAT_TYPE_AS(TY, y.type,
                       launch(stream, name, unary_kernel<TX, TY, F>, grid_for(n), strided(x), strided(y), n);))
}

template <typename F>
void binary(cudaStream_t stream, const char* name, const View& x, const View& y, const View& out) {
  H3_ASSERT(same_dims(x, y) && same_dims(x, out));
  const int64_t n = x.elements();
  const auto vectors = [&](const View& v) {
    return v.type == x.type && v.contiguous() && reinterpret_cast<uintptr_t>(v.data) % 16 == 0;
  };
  if (vectors(x) && vectors(y) && vectors(out)) {
    H3_FLOAT_TYPE(x.type, launch(stream, name, dense_kernel<T, F>, grid_for(ceil_div(n, 8)), as<const T>(x),
                                 as<const T>(y), as<T>(out), n);)
    return;
  }
  H3_FLOAT_TYPE_AS(TX, x.type,
                   H3_FLOAT_TYPE_AS(TY, y.type,
                                    H3_FLOAT_TYPE_AS(TO, out.type,
                                                     launch(stream, name, binary_kernel<TX, TY, TO, F>, grid_for(n),
                                                            strided(x), strided(y), strided(out), n);)))
}

template <int kMode>
void move_rows(cudaStream_t stream, const char* name, const View& src, const View& ids, const View& dst) {
  H3_ASSERT(ids.type == DType::i32 && ids.rank == 1 && ids.stride[0] == 1 && src.rank == dst.rank && src.rank >= 1);
  int64_t item = 1;
  for (int i = 1; i < src.rank; ++i) {
    H3_ASSERT(src.dim[i] == dst.dim[i]);
    item *= src.dim[i];
  }
  const int64_t total = ids.dim[0] * item;
  H3_FLOAT_TYPE_AS(TS, src.type,
                   H3_FLOAT_TYPE_AS(TD, dst.type,
                                    launch(stream, name, rows_kernel<TS, TD, kMode>, grid_for(total), strided(src),
                                           as<const int32_t>(ids), strided(dst), item, total);))
}

template <typename T>
void copy_same(cudaStream_t stream, const View& src, const View& dst) {
  const int64_t n = src.elements();
  launch(stream, "copy", copy_kernel<T, T>, grid_for(n), strided(src), strided(dst), n);
}

}  // namespace

void CudaOps::copy(const View& src, const View& dst) {
  H3_ASSERT(same_dims(src, dst));
  const int64_t n = src.elements();
  if (n == 0) return;
  if (src.type == dst.type && src.contiguous() && dst.contiguous()) {
    check(cudaMemcpyAsync(dst.data, src.data, static_cast<size_t>(src.bytes()), cudaMemcpyDeviceToDevice, stream()),
          "copy");
    return;
  }
  if (!is_float(src.type)) {
    H3_ASSERT(src.type == dst.type);
    switch (size_of(src.type)) {
      case 8: copy_same<int64_t>(stream(), src, dst); return;
      case 4: copy_same<int32_t>(stream(), src, dst); return;
      default: copy_same<uint8_t>(stream(), src, dst); return;
    }
  }
  if (src.rank == 2 && vectorises(src) && vectorises(dst)) {
    const int64_t vectors = src.dim[1] / 8, total = src.dim[0] * vectors;
    H3_FLOAT_TYPE_AS(
        TS, src.type,
        H3_FLOAT_TYPE_AS(TD, dst.type,
                         launch(stream(), "copy", copy_rows_kernel<TS, TD>, grid_for(total), as<const TS>(src),
                                src.stride[0], as<TD>(dst), dst.stride[0], vectors, total);))
    return;
  }
  H3_FLOAT_TYPE_AS(
      TS, src.type,
      H3_FLOAT_TYPE_AS(TD, dst.type,
                       launch(stream(), "copy", copy_kernel<TS, TD>, grid_for(n), strided(src), strided(dst), n);))
}

void CudaOps::fill(const View& dst, float value) {
  const int64_t n = dst.elements();
  if (dst.type == DType::i32) {
    H3_ASSERT(value == 0.0f && dst.contiguous());
    check(cudaMemsetAsync(dst.data, 0, static_cast<size_t>(dst.bytes()), stream()), "fill");
    return;
  }
  H3_FLOAT_TYPE(dst.type, launch(stream(), "fill", fill_kernel<T>, grid_for(n), strided(dst), n, value);)
}

void CudaOps::gather_rows(const View& src, const View& ids, const View& dst) {
  move_rows<0>(stream(), "gather_rows", src, ids, dst);
}
void CudaOps::scatter_rows(const View& src, const View& ids, const View& dst) {
  move_rows<1>(stream(), "scatter_rows", src, ids, dst);
}
void CudaOps::scatter_add_rows(const View& src, const View& ids, const View& dst) {
  move_rows<2>(stream(), "scatter_add_rows", src, ids, dst);
}

void CudaOps::silu(const View& x, const View& y) { unary<Silu>(stream(), "silu", x, y); }
void CudaOps::gelu(const View& x, Gelu kind, const View& y) {
  if (kind == Gelu::tanh)
    unary<GeluTanh>(stream(), "gelu", x, y);
  else
    unary<GeluErf>(stream(), "gelu", x, y);
}
void CudaOps::add(const View& x, const View& y, const View& out) { binary<Add>(stream(), "add", x, y, out); }
void CudaOps::subtract(const View& x, const View& y, const View& out) {
  binary<Subtract>(stream(), "subtract", x, y, out);
}
void CudaOps::multiply(const View& x, const View& y, const View& out) {
  binary<Multiply>(stream(), "multiply", x, y, out);
}

void CudaOps::swiglu(const View& gate, const View& value, const View& out) {
  H3_ASSERT(same_dims(gate, value) && same_dims(gate, out) && gate.type == value.type && gate.type == out.type);
  check_rows(gate);
  check_rows(value);
  check_rows(out);
  const bool vec = vectorises(gate) && vectorises(value) && vectorises(out);
  const int64_t cols = gate.dim[1], rows = gate.dim[0];
  const bool by_row = vec && cols <= kFedPasses * kThreads * 8;
  if (const Float8Rows float8 = fed_rows(FedBy::swiglu, out, by_row); float8.codes != nullptr) {
    launch(stream(), "swiglu_rows", swiglu_rows_kernel, {dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0},
           as<const bf16>(gate), gate.stride[0], as<const bf16>(value), value.stride[0], as<bf16>(out), out.stride[0],
           cols, float8);
    return;
  }
  const LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(cols, kThreads * (vec ? 8 : 1))),
                               static_cast<unsigned>(std::min<int64_t>(rows, 32768))),
                          dim3(kThreads), 0};
  H3_FLOAT_TYPE(gate.type, {
    auto* kernel = vec ? swiglu_kernel<T, true> : swiglu_kernel<T, false>;
    launch(stream(), "swiglu", kernel, shape, as<const T>(gate), gate.stride[0], as<const T>(value), value.stride[0],
           as<T>(out), out.stride[0], cols, rows);
  })
}

void CudaOps::scaled_add(const View& x, const View& y, const View& scale) {
  H3_ASSERT(same_dims(x, y) && scale.type == DType::f32 && scale.dim[0] == x.dim[1]);
  check_rows(x);
  check_rows(y);
  const bool vec = vectorises(x) && vectorises(y);
  const LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(x.dim[1], kThreads * (vec ? 8 : 1))),
                               static_cast<unsigned>(std::min<int64_t>(x.dim[0], 32768))),
                          dim3(kThreads), 0};
  H3_FLOAT_TYPE_AS(TX, x.type, H3_FLOAT_TYPE_AS(TY, y.type, {
                     auto* kernel = vec ? scaled_add_kernel<TX, TY, true> : scaled_add_kernel<TX, TY, false>;
                     launch(stream(), "scaled_add", kernel, shape, as<TX>(x), x.stride[0], as<const TY>(y), y.stride[0],
                            as<const float>(scale), x.dim[1], x.dim[0]);
                   }))
}

void CudaOps::lincomb(const View& c, const View& a, const View& b, const View& out) {
  H3_ASSERT(same_dims(a, b) && same_dims(a, out) && a.type == DType::f32 && out.type == DType::f32);
  launch(stream(), "lincomb", lincomb_kernel, grid_for(a.elements()), as<const float>(c), strided(a), strided(b),
         strided(out), a.elements());
}

void CudaOps::channel_affine(const View& x, const View& std, const View& mean, const View& y) {
  H3_ASSERT(same_dims(x, y) && std.dim[0] == x.dim[0] && mean.dim[0] == x.dim[0]);
  const int64_t n = x.elements();
  launch(stream(), "channel_affine", affine_kernel<false>, grid_for(n), strided(x), as<const float>(std),
         as<const float>(mean), strided(y), n / std::max<int64_t>(x.dim[0], 1), n);
}

void CudaOps::to_unit_range(const View& x, const View& std, const View& mean, const View& y) {
  H3_ASSERT(same_dims(x, y) && std.dim[0] == x.dim[0] && mean.dim[0] == x.dim[0]);
  const int64_t n = x.elements();
  launch(stream(), "to_unit_range", affine_kernel<true>, grid_for(n), strided(x), as<const float>(std),
         as<const float>(mean), strided(y), n / std::max<int64_t>(x.dim[0], 1), n);
}

}  // namespace h3::cuda
