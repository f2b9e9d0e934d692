// Per-head norm and rotation, in place: one block per row, one warp per head at a time; the tables of the row are read
// once.
#include "backends/cuda/kernels/common.cuh"

namespace h3::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMaxHead = 256;

struct RopeArgs {
  char* x;
  int64_t row_stride, head_stride;  // elements
  int heads, d, pairs;
  const float* w;
  float eps;
  bool norm, twice, per_op;
  const float* cos;
  const float* sin;
  int64_t table_stride;
};

template <typename T>
__global__ void __launch_bounds__(kWarps * 32) head_norm_rope_kernel(RopeArgs a) {
  __shared__ float c[kMaxHead / 2], s[kMaxHead / 2];
  __shared__ float head[kWarps][kMaxHead];
  const int64_t row = blockIdx.x;
  for (int j = threadIdx.x; j < a.pairs; j += blockDim.x) {
    const float cv = a.cos[row * a.table_stride + j], sv = a.sin[row * a.table_stride + j];
    c[j] = a.per_op ? round_to<T>(cv) : cv;
    s[j] = a.per_op ? round_to<T>(sv) : sv;
  }
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int h = warp; h < a.heads; h += kWarps) {
    T* x = reinterpret_cast<T*>(a.x) + row * a.row_stride + h * a.head_stride;
    float* v = head[warp];
    float sum = 0;
    for (int i = lane; i < a.d; i += 32) {
      v[i] = to_float(x[i]);
      sum += v[i] * v[i];
    }
    if (a.norm) {
      for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      const float factor = rsqrtf(sum / static_cast<float>(a.d) + a.eps);
      for (int i = lane; i < a.d; i += 32) {
        float e = v[i] * factor;
        if (a.twice) e = round_to<T>(e);
        if (a.w != nullptr) e *= a.w[i];
        v[i] = round_to<T>(e);
      }
    }
    __syncwarp();
    for (int j = lane; j < a.pairs; j += 32) {
      const float p = v[j], q = v[j + a.pairs];
      float pc = p * c[j], qs = q * s[j], qc = q * c[j], ps = p * s[j];
      if (a.per_op) pc = round_to<T>(pc), qs = round_to<T>(qs), qc = round_to<T>(qc), ps = round_to<T>(ps);
      v[j] = pc - qs;
      v[j + a.pairs] = qc + ps;
    }
    __syncwarp();
    for (int i = lane; i < a.d; i += 32) x[i] = from_float<T>(v[i]);
    __syncwarp();
  }
}

// The same for heads of 32 * kChunk elements: a lane holds kChunk consecutive ones, and its partner in the rotation is
// pairs / kChunk lanes away, so a head never leaves the registers.
template <typename T, int kChunk>
__global__ void __launch_bounds__(kWarps * 32) head_norm_rope_lanes_kernel(RopeArgs a) {
  const int64_t row = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int distance = a.pairs / kChunk;
  const bool low = lane < distance, rotates = lane < 2 * distance;
  float c[kChunk], s[kChunk], w[kChunk];
#pragma unroll
  for (int e = 0; e < kChunk; ++e) {
    w[e] = a.w != nullptr ? a.w[lane * kChunk + e] : 1.0f;
    c[e] = 1.0f, s[e] = 0.0f;
    if (rotates) {
      const int j = (low ? lane : lane - distance) * kChunk + e;
      c[e] = a.cos[row * a.table_stride + j], s[e] = a.sin[row * a.table_stride + j];
      if (a.per_op) c[e] = round_to<T>(c[e]), s[e] = round_to<T>(s[e]);
    }
  }
  const int source = low ? lane + distance : lane - distance;
  for (int h = warp; h < a.heads; h += kWarps) {
    T* x = reinterpret_cast<T*>(a.x) + row * a.row_stride + h * a.head_stride + lane * kChunk;
    using Raw = std::conditional_t<sizeof(T) * kChunk == 16, uint4,
                                   std::conditional_t<sizeof(T) * kChunk == 8, uint2, uint32_t>>;
    const Raw raw = *reinterpret_cast<const Raw*>(x);
    const T* in = reinterpret_cast<const T*>(&raw);
    float v[kChunk];
    float sum = 0;
#pragma unroll
    for (int e = 0; e < kChunk; ++e) {
      v[e] = to_float(in[e]);
      sum += v[e] * v[e];
    }
    if (a.norm) {
      for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      const float factor = rsqrtf(sum / static_cast<float>(a.d) + a.eps);
#pragma unroll
      for (int e = 0; e < kChunk; ++e) {
        float value = v[e] * factor;
        if (a.twice) value = round_to<T>(value);
        v[e] = round_to<T>(value * w[e]);
      }
    }
    Raw out;
    T* o = reinterpret_cast<T*>(&out);
#pragma unroll
    for (int e = 0; e < kChunk; ++e) {
      const float other = __shfl_sync(0xffffffffu, v[e], source & 31);
      float own = v[e] * c[e], cross = other * s[e];
      if (a.per_op) own = round_to<T>(own), cross = round_to<T>(cross);
      const float rotated = low ? own - cross : own + cross;
      o[e] = from_float<T>(rotates ? rotated : v[e]);
    }
    *reinterpret_cast<Raw*>(x) = out;
  }
}

// kChunk consecutive elements of every head lie in one aligned access, and the pairs are whole chunks.
template <typename T, int kChunk>
bool fits_lanes(const RopeArgs& a) {
  const int64_t size = sizeof(T) * kChunk;
  const auto aligned = [&](int64_t elements) { return elements * static_cast<int64_t>(sizeof(T)) % size == 0; };
  return a.d == 32 * kChunk && a.pairs % kChunk == 0 && size <= 16 && reinterpret_cast<uintptr_t>(a.x) % size == 0 &&
         aligned(a.row_stride) && aligned(a.head_stride);
}

template <typename T>
void launch_rope(cudaStream_t stream, const RopeArgs& a, const LaunchShape& shape) {
  if (fits_lanes<T, 4>(a))
    launch(stream, "head_norm_rope", head_norm_rope_lanes_kernel<T, 4>, shape, a);
  else if (fits_lanes<T, 2>(a))
    launch(stream, "head_norm_rope", head_norm_rope_lanes_kernel<T, 2>, shape, a);
  else
    launch(stream, "head_norm_rope", head_norm_rope_kernel<T>, shape, a);
}

}  // namespace

void CudaOps::head_norm_rope(const View& x, const HeadNorm& norm, const Rope& rope) {
  H3_ASSERT(x.rank == 3 && x.stride[2] == 1 && x.dim[2] <= kMaxHead);
  RopeArgs a{};
  a.x = reinterpret_cast<char*>(x.data);
  a.row_stride = x.stride[0];
  a.head_stride = x.stride[1];
  a.heads = static_cast<int>(x.dim[1]);
  a.d = static_cast<int>(x.dim[2]);
  a.norm = norm.enabled;
  a.w = norm.w.empty() ? nullptr : as<const float>(norm.w);
  a.eps = norm.eps;
  a.twice = norm.rounding == NormRounding::twice;
  a.per_op = rope.rounding == RopeRounding::per_op;
  if (!rope.cos.empty()) {
    H3_ASSERT(rope.cos.dim[0] == x.dim[0] && 2 * rope.cos.dim[1] <= x.dim[2] && rope.cos.stride[1] == 1);
    a.pairs = static_cast<int>(rope.cos.dim[1]);
    a.cos = as<const float>(rope.cos);
    a.sin = as<const float>(rope.sin);
    a.table_stride = rope.cos.stride[0];
  }
  const LaunchShape shape{dim3(static_cast<unsigned>(x.dim[0])), dim3(kWarps * 32), 0};
  H3_FLOAT_TYPE(x.type, launch_rope<T>(stream(), a, shape);)
}

}  // namespace h3::cuda
