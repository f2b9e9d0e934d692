// Norms and the fused residual updates: one block per row, the row held in shared memory as f32.
#include <algorithm>

#include "backends/cuda/kernels/float8.cuh"

namespace h3::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxRow = 48 * 1024;  // floats of one row in shared memory

// Rows along the last axis of a view of rank 1 to 3; strides in elements.
struct Rows {
  const char* data;
  int64_t inner;  // extent of the axis before the last; row r = (r / inner, r % inner)
  int64_t outer_stride, stride;
};

template <typename T>
__device__ inline const T* row_of(const Rows& rows, int64_t r) {
  return reinterpret_cast<const T*>(rows.data) + r / rows.inner * rows.outer_stride + r % rows.inner * rows.stride;
}

// kStep elements: one, or eight in 16-byte accesses.
template <typename T, int kStep>
__device__ inline void load(const T* p, float (&v)[kStep]) {
  if constexpr (kStep == 8) {
    Vec8<T> raw;
    raw.load(p);
#pragma unroll
    for (int e = 0; e < 8; ++e) v[e] = raw.v[e];
  } else {
    v[0] = to_float(*p);
  }
}

template <typename T, int kStep>
__device__ inline void store(T* p, const float (&v)[kStep]) {
  if constexpr (kStep == 8) {
    Vec8<T> raw;
#pragma unroll
    for (int e = 0; e < 8; ++e) raw.v[e] = v[e];
    raw.store(p);
  } else {
    *p = from_float<T>(v[0]);
  }
}

// The row stays in registers: thread t holds elements (p * kThreads + t) * kStep .. + kStep of pass p.
template <typename TX, typename TY, int kStep, int kPasses>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(Rows x, Rows y, const float* w, int n, float eps, bool twice) {
  __shared__ float reduce[33];
  const TX* in = row_of<TX>(x, blockIdx.x);
  float v[kPasses][kStep];
  float sum = 0;
#pragma unroll
  for (int p = 0; p < kPasses; ++p) {
    const int i = (p * kThreads + static_cast<int>(threadIdx.x)) * kStep;
    if (i >= n) continue;
    load<TX, kStep>(in + i, v[p]);
#pragma unroll
    for (int e = 0; e < kStep; ++e) sum += v[p][e] * v[p][e];
  }
  const float factor = rsqrtf(block_sum(sum, reduce) / static_cast<float>(n) + eps);
  TY* out = const_cast<TY*>(row_of<TY>(y, blockIdx.x));
#pragma unroll
  for (int p = 0; p < kPasses; ++p) {
    const int i = (p * kThreads + static_cast<int>(threadIdx.x)) * kStep;
    if (i >= n) continue;
    float weight[kStep];
    if (w != nullptr) load<float, kStep>(w + i, weight);
#pragma unroll
    for (int e = 0; e < kStep; ++e) {
      v[p][e] *= factor;
      if (twice) v[p][e] = round_to<TY>(v[p][e]);
      if (w != nullptr) v[p][e] *= weight[e];
    }
    store<TY, kStep>(out + i, v[p]);
  }
}

template <typename TX, typename TY>
__global__ void __launch_bounds__(kThreads)
    layer_norm_kernel(Rows x, Rows y, const float* w, const float* b, int n, float eps) {
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
  Float8Rows float8;  // of h, where its reader wants it
};

// kGate: x = round(x + round(gate * y)) first. kNorm: then h = modulate(norm(x)). The row stays in registers: thread t
// holds elements (p * kThreads + t) * kStep .. + kStep of pass p, up to kPasses passes.
template <typename T, bool kGate, bool kNorm, int kStep, int kPasses>
__global__ void __launch_bounds__(kThreads) gate_norm_kernel(ModulateArgs a) {
  __shared__ float reduce[33];
  const int64_t r = blockIdx.x;
  T* x = const_cast<T*>(row_of<T>(a.x, r));
  const T* y = nullptr;
  const T* gate = nullptr;
  if constexpr (kGate) y = row_of<T>(a.y, r), gate = row_of<T>(a.gate, a.gate_ids[r]);
  float v[kPasses][kStep];
  float sum = 0;
#pragma unroll
  for (int p = 0; p < kPasses; ++p) {
    const int i = (p * kThreads + static_cast<int>(threadIdx.x)) * kStep;
    if (i >= a.n) continue;
    load<T, kStep>(x + i, v[p]);
    if constexpr (kGate) {
      float branch[kStep], g[kStep];
      load<T, kStep>(y + i, branch);
      load<T, kStep>(gate + i, g);
#pragma unroll
      for (int e = 0; e < kStep; ++e) v[p][e] = round_to<T>(v[p][e] + round_to<T>(g[e] * branch[e]));
      store<T, kStep>(x + i, v[p]);
    }
    if constexpr (kNorm) {
#pragma unroll
      for (int e = 0; e < kStep; ++e) sum += v[p][e] * v[p][e];
    }
  }
  if constexpr (kNorm) {
    const float factor = rsqrtf(block_sum(sum, reduce) / static_cast<float>(a.n) + a.eps);
    const T* shift = row_of<T>(a.shift, a.ids[r]);
    const T* scale = row_of<T>(a.scale, a.ids[r]);
    T* h = const_cast<T*>(row_of<T>(a.h, r));
    uint32_t top = 0;
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      const int i = (p * kThreads + static_cast<int>(threadIdx.x)) * kStep;
      if (i >= a.n) continue;
      float s[kStep], t[kStep], w[kStep];
      load<T, kStep>(scale + i, s);
      load<T, kStep>(shift + i, t);
      if (a.w != nullptr) load<float, kStep>(a.w + i, w);
#pragma unroll
      for (int e = 0; e < kStep; ++e) {
        float value = v[p][e] * factor;
        if (a.w != nullptr) value *= w[e];
        value = round_to<T>(value);
        value = round_to<T>(value * round_to<T>(1.0f + s[e]));
        v[p][e] = round_to<T>(value + t[e]);
        top = max(top, magnitude_bits(v[p][e]));
      }
      if (!a.float8.alone) store<T, kStep>(h + i, v[p]);
    }
    if constexpr (kStep == 8) {
      __shared__ uint32_t tops[kThreads / 32];
      if (a.float8.codes == nullptr) return;
      const float absmax = block_max<kThreads>(top, tops), inverse = float8_row_inverse(absmax);
      if (threadIdx.x == 0) a.float8.scale[r] = float8_row_scale(absmax);
#pragma unroll
      for (int p = 0; p < kPasses; ++p) {
        const int i = (p * kThreads + static_cast<int>(threadIdx.x)) * kStep;
        if (i < a.n) *reinterpret_cast<uint2*>(a.float8.codes + r * a.float8.pitch + i) = float8_codes(v[p], inverse);
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
  const LaunchShape shape{dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0};
  const int64_t passes = ceil_div(args.n, kThreads * (vec ? 8 : 1));
  H3_ASSERT(passes <= 64);
  if (vec && passes <= 3)
    launch(stream, name, gate_norm_kernel<T, kGate, kNorm, 8, 3>, shape, args);
  else if (vec)
    launch(stream, name, gate_norm_kernel<T, kGate, kNorm, 8, 8>, shape, args);
  else if (passes <= 16)
    launch(stream, name, gate_norm_kernel<T, kGate, kNorm, 1, 16>, shape, args);
  else
    launch(stream, name, gate_norm_kernel<T, kGate, kNorm, 1, 64>, shape, args);
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
  const LaunchShape shape{dim3(static_cast<unsigned>(row_count(x))), dim3(kThreads), 0};
  const int64_t passes = ceil_div(n, kThreads * (vec ? 8 : 1));
  H3_ASSERT(passes <= 64);
  H3_FLOAT_TYPE_AS(TX, x.type, H3_FLOAT_TYPE_AS(TY, y.type, {
                     auto* kernel = vec && passes <= 1   ? rms_norm_kernel<TX, TY, 8, 1>
                                    : vec && passes <= 3 ? rms_norm_kernel<TX, TY, 8, 3>
                                    : vec && passes <= 8 ? rms_norm_kernel<TX, TY, 8, 8>
                                    : passes <= 16       ? rms_norm_kernel<TX, TY, 1, 16>
                                                         : rms_norm_kernel<TX, TY, 1, 64>;
                     launch(stream(), "rms_norm", kernel, shape, rows_of(x), rows_of(y), weights(w, n), n, eps, twice);
                   }))
}

void CudaOps::layer_norm(const View& x, const View& w, const View& b, float eps, const View& y) {
  const int64_t n = x.dim[x.rank - 1];
  H3_FLOAT_TYPE_AS(TX, x.type, H3_FLOAT_TYPE_AS(TY, y.type, {
                     launch(stream(), "layer_norm", layer_norm_kernel<TX, TY>, per_row(row_count(x), n), rows_of(x),
                            rows_of(y), weights(w, n), weights(b, n), n, eps);
                   }))
}

void CudaOps::norm_modulate(const View& x, const View& w, float eps, const Modulation& mod, const View& h) {
  ModulateArgs args{};
  args.n = static_cast<int>(x.dim[1]);
  args.x = rows_of(x);
  set_modulation(args, w, eps, mod, h);
  const bool vec = vectorises(x) && vectorises(mod.shift) && vectorises(mod.scale) && vectorises(h);
  args.float8 = fed_rows(FedBy::norm, h, vec);
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
  args.float8 = fed_rows(FedBy::norm, h, vec);
  H3_FLOAT_TYPE(x.type, launch_gate_norm<T, true, true>(stream(), "gate_norm", args, x.dim[0], vec);)
}

}  // namespace h3::cuda
