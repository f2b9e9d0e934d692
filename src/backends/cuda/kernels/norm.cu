// Norms and the fused residual updates: one block per row, the row held in shared memory as f32.
#include <algorithm>

#include "backends/cuda/kernels/common.cuh"

namespace h3::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxRow = 48 * 1024;  // floats of one row in shared memory

// Rows along the last axis of a view of rank 1 to 3; strides in elements.
struct Rows {
  const char* data;
  int64_t inner;   // extent of the axis before the last; row r = (r / inner, r % inner)
  int64_t outer_stride, stride;
};

template <typename T>
__device__ inline const T* row_of(const Rows& rows, int64_t r) {
  return reinterpret_cast<const T*>(rows.data) + r / rows.inner * rows.outer_stride + r % rows.inner * rows.stride;
}

// Loads a row into shared memory and returns its sum of squares.
template <typename T, bool kVec>
__device__ float load_squares(const T* x, int n, float* row, float* reduce) {
  float sum = 0;
  if constexpr (kVec) {
    for (int i = threadIdx.x * 8; i < n; i += kThreads * 8) {
      Vec8<T> v;
      v.load(x + i);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        row[i + e] = v.v[e];
        sum += v.v[e] * v.v[e];
      }
    }
  } else {
    for (int i = threadIdx.x; i < n; i += kThreads) {
      const float v = to_float(x[i]);
      row[i] = v;
      sum += v * v;
    }
  }
  return block_sum(sum, reduce);
}

template <typename TX, typename TY, bool kVec>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(Rows x, Rows y, const float* w, int n, float eps, bool twice) {
  extern __shared__ float row[];
  __shared__ float reduce[33];
  const float squares = load_squares<TX, kVec>(row_of<TX>(x, blockIdx.x), n, row, reduce);
  const float factor = rsqrtf(squares / static_cast<float>(n) + eps);
  TY* out = const_cast<TY*>(row_of<TY>(y, blockIdx.x));
  const auto value = [&](int i) {
    float v = row[i] * factor;
    if (twice) v = round_to<TY>(v);
    return w != nullptr ? v * w[i] : v;
  };
  if constexpr (kVec) {
    for (int i = threadIdx.x * 8; i < n; i += kThreads * 8) {
      Vec8<TY> v;
#pragma unroll
      for (int e = 0; e < 8; ++e) v.v[e] = value(i + e);
      v.store(out + i);
    }
  } else {
    for (int i = threadIdx.x; i < n; i += kThreads) out[i] = from_float<TY>(value(i));
  }
}

template <typename TX, typename TY>
__global__ void __launch_bounds__(kThreads) layer_norm_kernel(Rows x, Rows y, const float* w, const float* b, int n, float eps) {
  extern __shared__ float row[];
  __shared__ float reduce[33];
  const TX* in = row_of<TX>(x, blockIdx.x);
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) {
    row[i] = to_float(in[i]);
    sum += row[i];
  }
  const float mean = block_sum(sum, reduce) / static_cast<float>(n);
  float squares = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const float d = row[i] - mean;
    squares += d * d;
  }
  const float factor = rsqrtf(block_sum(squares, reduce) / static_cast<float>(n) + eps);
  TY* out = const_cast<TY*>(row_of<TY>(y, blockIdx.x));
  for (int i = threadIdx.x; i < n; i += kThreads) {
    float v = (row[i] - mean) * factor;
    if (w != nullptr) v *= w[i];
    if (b != nullptr) v += b[i];
    out[i] = from_float<TY>(v);
  }
}

struct ModulateArgs {
  Rows x, y, gate, shift, scale, h;
  const int32_t* gate_ids;
  const int32_t* ids;
  const float* w;
  int n;
  float eps;
};

// kGate: x = round(x + round(gate * y)) first. kNorm: then h = modulate(norm(x)).
template <typename T, bool kGate, bool kNorm, bool kVec>
__global__ void __launch_bounds__(kThreads) gate_norm_kernel(ModulateArgs a) {
  extern __shared__ float row[];
  __shared__ float reduce[33];
  const int64_t r = blockIdx.x;
  T* x = const_cast<T*>(row_of<T>(a.x, r));
  constexpr int kStep = kVec ? 8 : 1;
  float sum = 0;
  for (int i = threadIdx.x * kStep; i < a.n; i += kThreads * kStep) {
    float v[kStep];
    if constexpr (kVec) {
      Vec8<T> raw;
      raw.load(x + i);
#pragma unroll
      for (int e = 0; e < 8; ++e) v[e] = raw.v[e];
    } else {
      v[0] = to_float(x[i]);
    }
    if constexpr (kGate) {
      const T* y = row_of<T>(a.y, r) + i;
      const T* g = row_of<T>(a.gate, a.gate_ids[r]) + i;
      if constexpr (kVec) {
        Vec8<T> branch, gate, out;
        branch.load(y);
        gate.load(g);
#pragma unroll
        for (int e = 0; e < 8; ++e) out.v[e] = v[e] = round_to<T>(v[e] + round_to<T>(gate.v[e] * branch.v[e]));
        out.store(x + i);
      } else {
        v[0] = round_to<T>(v[0] + round_to<T>(to_float(*g) * to_float(*y)));
        x[i] = from_float<T>(v[0]);
      }
    }
    if constexpr (kNorm) {
#pragma unroll
      for (int e = 0; e < kStep; ++e) {
        row[i + e] = v[e];
        sum += v[e] * v[e];
      }
    }
  }
  if constexpr (kNorm) {
    const float factor = rsqrtf(block_sum(sum, reduce) / static_cast<float>(a.n) + a.eps);
    const T* shift = row_of<T>(a.shift, a.ids[r]);
    const T* scale = row_of<T>(a.scale, a.ids[r]);
    T* h = const_cast<T*>(row_of<T>(a.h, r));
    const auto modulated = [&](int i, float s, float t) {
      float v = row[i] * factor;
      if (a.w != nullptr) v *= a.w[i];
      v = round_to<T>(v);
      v = round_to<T>(v * round_to<T>(1.0f + s));
      return round_to<T>(v + t);
    };
    for (int i = threadIdx.x * kStep; i < a.n; i += kThreads * kStep) {
      if constexpr (kVec) {
        Vec8<T> s, t, out;
        s.load(scale + i);
        t.load(shift + i);
#pragma unroll
        for (int e = 0; e < 8; ++e) out.v[e] = modulated(i + e, s.v[e], t.v[e]);
        out.store(h + i);
      } else {
        h[i] = from_float<T>(modulated(i, to_float(scale[i]), to_float(shift[i])));
      }
    }
  }
}

Rows rows_of(const View& view) {
  const int r = view.rank;
  H3_ASSERT(r >= 1 && r <= 3 && view.stride[r - 1] == 1);
  Rows out{reinterpret_cast<const char*>(view.data), 1, 0, 0};
  if (r >= 2) out.inner = std::max<int64_t>(view.dim[r - 2], 1), out.stride = view.stride[r - 2];
  if (r == 3) out.outer_stride = view.stride[0];
  return out;
}

int64_t row_count(const View& view) {
  int64_t n = 1;
  for (int i = 0; i + 1 < view.rank; ++i) n *= view.dim[i];
  return n;
}

const float* weights(const View& w, int64_t n) {
  if (w.empty()) return nullptr;
  H3_ASSERT(w.type == DType::f32 && w.rank == 1 && w.dim[0] == n && w.stride[0] == 1);
  return as<const float>(w);
}

LaunchShape per_row(int64_t rows, int64_t n) {
  H3_ASSERT(n <= kMaxRow);
  return {dim3(static_cast<unsigned>(rows)), dim3(kThreads), static_cast<size_t>(n) * 4};
}

template <typename T, bool kGate, bool kNorm>
void launch_gate_norm(cudaStream_t stream, const char* name, const ModulateArgs& args, int64_t rows, bool vec) {
  LaunchShape shape = per_row(rows, args.n);
  if (!kNorm) shape.shared = 0;
  if (vec) launch(stream, name, gate_norm_kernel<T, kGate, kNorm, true>, shape, args);
  else launch(stream, name, gate_norm_kernel<T, kGate, kNorm, false>, shape, args);
}

void set_modulation(ModulateArgs& args, const View& w, float eps, const Modulation& mod, const View& h) {
  args.shift = rows_of(mod.shift);
  args.scale = rows_of(mod.scale);
  args.ids = as<const int32_t>(mod.ids);
  args.w = weights(w, args.n);
  args.eps = eps;
  args.h = rows_of(h);
}

}  // namespace

void CudaOps::rms_norm(const View& x, const View& w, float eps, NormRounding rounding, const View& y) {
  const int64_t n = x.dim[x.rank - 1];
  const bool vec = vectorises(x) && vectorises(y), twice = rounding == NormRounding::twice;
  const LaunchShape shape = per_row(row_count(x), n);
  H3_FLOAT_TYPE_AS(TX, x.type, H3_FLOAT_TYPE_AS(TY, y.type, {
    if (vec) launch(stream(), "rms_norm", rms_norm_kernel<TX, TY, true>, shape, rows_of(x), rows_of(y), weights(w, n), n, eps, twice);
    else launch(stream(), "rms_norm", rms_norm_kernel<TX, TY, false>, shape, rows_of(x), rows_of(y), weights(w, n), n, eps, twice);
  }))
}

void CudaOps::layer_norm(const View& x, const View& w, const View& b, float eps, const View& y) {
  const int64_t n = x.dim[x.rank - 1];
  H3_FLOAT_TYPE_AS(TX, x.type, H3_FLOAT_TYPE_AS(TY, y.type, {
    launch(stream(), "layer_norm", layer_norm_kernel<TX, TY>, per_row(row_count(x), n), rows_of(x), rows_of(y), weights(w, n),
           weights(b, n), n, eps);
  }))
}

void CudaOps::norm_modulate(const View& x, const View& w, float eps, const Modulation& mod, const View& h) {
  ModulateArgs args{};
  args.n = static_cast<int>(x.dim[1]);
  args.x = rows_of(x);
  set_modulation(args, w, eps, mod, h);
  const bool vec = vectorises(x) && vectorises(mod.shift) && vectorises(mod.scale) && vectorises(h);
  H3_FLOAT_TYPE(x.type, launch_gate_norm<T, false, true>(stream(), "norm_modulate", args, x.dim[0], vec);)
}

void CudaOps::gated_add(const View& x, const View& y, const Gate& gate) {
  ModulateArgs args{};
  args.n = static_cast<int>(x.dim[1]);
  args.x = rows_of(x);
  args.y = rows_of(y);
  args.gate = rows_of(gate.gate);
  args.gate_ids = as<const int32_t>(gate.ids);
  const bool vec = vectorises(x) && vectorises(y) && vectorises(gate.gate);
  H3_FLOAT_TYPE(x.type, launch_gate_norm<T, true, false>(stream(), "gated_add", args, x.dim[0], vec);)
}

void CudaOps::gate_norm(const View& x, const View& y, const Gate& gate, const View& w, float eps, const Modulation& mod,
                        const View& h) {
  ModulateArgs args{};
  args.n = static_cast<int>(x.dim[1]);
  args.x = rows_of(x);
  args.y = rows_of(y);
  args.gate = rows_of(gate.gate);
  args.gate_ids = as<const int32_t>(gate.ids);
  set_modulation(args, w, eps, mod, h);
  const bool vec = vectorises(x) && vectorises(y) && vectorises(gate.gate) && vectorises(mod.shift) &&
                   vectorises(mod.scale) && vectorises(h);
  H3_FLOAT_TYPE(x.type, launch_gate_norm<T, true, true>(stream(), "gate_norm", args, x.dim[0], vec);)
}

}  // namespace h3::cuda
