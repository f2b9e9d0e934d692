// Operations of the two autoencoders: group norm with silu, snakes, tile blending.
#include "backends/cuda/kernels/common.cuh"

namespace h3::cuda {
namespace {

constexpr int kThreads = 256;

struct Field {
  char* data;
  int64_t stride[4];  // channel, t, h, w
};

template <typename T>
__device__ inline T& at(const Field& f, int64_t c, int64_t t, int64_t h, int64_t w) {
  return reinterpret_cast<T*>(f.data)[c * f.stride[0] + t * f.stride[1] + h * f.stride[2] + w * f.stride[3]];
}

// One block per (group, frame): mean, then variance around it, then the result. kPlanes: the pictures of both sides lie
// densely, so that nothing is divided per element.
template <typename TX, typename TY, bool kPlanes>
__global__ void __launch_bounds__(1024)
    group_norm_silu_kernel(Field x, Field y, int channels, int64_t height, int64_t width, const float* w,
                           const float* b, float eps) {
  __shared__ float reduce[33];
  const int64_t first = blockIdx.x * int64_t{channels}, t = blockIdx.y, area = height * width, n = channels * area;
  // body(element of x, element of y, channel)
  const auto each = [&](auto&& body) {
    if constexpr (kPlanes) {
      const int count = static_cast<int>(area);
      for (int c = 0; c < channels; ++c) {
        const TX* const from = &at<TX>(x, first + c, t, 0, 0);
        TY* const to = &at<TY>(y, first + c, t, 0, 0);
#pragma unroll 4
        for (int i = threadIdx.x; i < count; i += blockDim.x) body(from[i], to[i], first + c);
      }
    } else {
      for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        const int64_t c = first + i / area, r = i % area, h = r / width, column = r % width;
        body(at<TX>(x, c, t, h, column), at<TY>(y, c, t, h, column), c);
      }
    }
  };
  float sum = 0;
  each([&](const TX& from, TY&, int64_t) { sum += to_float(from); });
  const float mean = block_sum(sum, reduce) / static_cast<float>(n);
  float squares = 0;
  each([&](const TX& from, TY&, int64_t) {
    const float d = to_float(from) - mean;
    squares += d * d;
  });
  const float factor = rsqrtf(block_sum(squares, reduce) / static_cast<float>(n) + eps);
  each([&](const TX& from, TY& to, int64_t c) {
    const float v = (to_float(from) - mean) * factor * w[c] + b[c];
    to = from_float<TY>(v / (1.0f + expf(-v)));
  });
}

// Count, mean and summed squares around the mean of some of the values.
struct Moments {
  float n = 0, mean = 0, squares = 0;
  __device__ void add(const Moments& o) {
    const float total = n + o.n;
    if (total == 0) return;
    const float d = o.mean - mean, share = o.n / total;
    mean += d * share;
    squares += o.squares + d * d * n * share;
    n = total;
  }
};

// Of the whole block, for every thread; a fixed order.
__device__ inline Moments block_moments(Moments m, Moments* shared) {
  const auto over_warp = [&] {
    for (int offset = 16; offset > 0; offset >>= 1) {
      Moments o;
      o.n = __shfl_down_sync(0xffffffffu, m.n, offset);
      o.mean = __shfl_down_sync(0xffffffffu, m.mean, offset);
      o.squares = __shfl_down_sync(0xffffffffu, m.squares, offset);
      m.add(o);
    }
  };
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  over_warp();
  if (lane == 0) shared[warp] = m;
  __syncthreads();
  if (warp == 0) {
    m = lane < warps ? shared[lane] : Moments{};
    over_warp();
    if (lane == 0) shared[32] = m;
  }
  __syncthreads();
  return shared[32];
}

// group_norm_silu of pictures that lie densely, eight values at a time: the input is read twice instead of three times.
template <typename TX, typename TY>
__global__ void __launch_bounds__(512)
    group_norm_silu_dense_kernel(Field x, Field y, int channels, int area, const float* w, const float* b, float eps) {
  __shared__ float store[33 * 3];
  const int64_t first = blockIdx.x * int64_t{channels}, t = blockIdx.y;
  Moments mine;
  for (int c = 0; c < channels; ++c) {
    const TX* const from = &at<TX>(x, first + c, t, 0, 0);
    for (int i = threadIdx.x * 8; i < area; i += blockDim.x * 8) {
      Vec8<TX> v;
      v.load(from + i);
      Moments eight;
      eight.n = 8;
#pragma unroll
      for (int e = 0; e < 8; ++e) eight.mean += v.v[e];
      eight.mean *= 0.125f;
#pragma unroll
      for (int e = 0; e < 8; ++e) eight.squares += (v.v[e] - eight.mean) * (v.v[e] - eight.mean);
      mine.add(eight);
    }
  }
  const Moments all = block_moments(mine, reinterpret_cast<Moments*>(store));
  const float factor = rsqrtf(all.squares / all.n + eps);
  for (int c = 0; c < channels; ++c) {
    const TX* const from = &at<TX>(x, first + c, t, 0, 0);
    TY* const to = &at<TY>(y, first + c, t, 0, 0);
    for (int i = threadIdx.x * 8; i < area; i += blockDim.x * 8) {
      Vec8<TX> v;
      Vec8<TY> result;
      v.load(from + i);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float n = (v.v[e] - all.mean) * factor * w[first + c] + b[first + c];
        result.v[e] = n / (1.0f + expf(-n));
      }
      result.store(to + i);
    }
  }
}

bool dense_planes(const View& view) {
  return view.stride[3] == 1 && view.stride[2] == view.dim[3] && view.dim[2] * view.dim[3] <= INT32_MAX;
}

__device__ inline float snake_value(float v, float a, float inv) {
  const float s = sinf(a * v);
  return v + inv * (s * s);
}

__global__ void snake_kernel(const float* x, int64_t x_stride, const float* a, const float* inv, float* y,
                             int64_t y_stride, int64_t length) {
  const int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x, c = blockIdx.y;
  if (i < length) y[c * y_stride + i] = snake_value(x[c * x_stride + i], a[c], inv[c]);
}

// kOutputs outputs of one channel (spec vae 11). The activated signal of twice the rate lies in shared memory, its even
// and its odd samples apart, so that neighbours read neighbours.
constexpr int kOutputs = 4 * kThreads;

__global__ void __launch_bounds__(kThreads)
    aa_snake_kernel(const float* x, int64_t x_stride, const float* a, const float* inv, const float* up,
                    const float* down, float* y, int64_t y_stride, int64_t length) {
  constexpr int kPairs = kOutputs + 6;  // (even, odd) of x[m0 - 3] .. x[m0 + kOutputs + 2]
  __shared__ float signal[kPairs + 6], even[kPairs], odd[kPairs];
  const int64_t m0 = blockIdx.x * int64_t{kOutputs}, c = blockIdx.y;
  float f[12], g[12];
#pragma unroll
  for (int k = 0; k < 12; ++k) f[k] = up[k], g[k] = down[k];
  const float* in = x + c * x_stride;
  const float alpha = a[c], inverse = inv[c];
  for (int i = threadIdx.x; i < kPairs + 6; i += kThreads) {
    const int64_t at = m0 - 6 + i;
    signal[i] = in[at < 0 ? 0 : at >= length ? length - 1 : at];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kPairs; i += kThreads) {
    const float* const near = signal + i + 3;  // x[m], m = m0 - 3 + i
    float e = 0, o = 0;
#pragma unroll
    for (int q = 0; q < 6; ++q) {
      e = fmaf(f[2 * q + 1], near[2 - q], e);
      o = fmaf(f[2 * q], near[3 - q], o);
    }
    even[i] = snake_value(2.0f * e, alpha, inverse);
    odd[i] = snake_value(2.0f * o, alpha, inverse);
  }
  __syncthreads();
  // The second filter repeats the ends of the activated signal, of which the filtered ends of x are no copies.
  const int64_t before = 3 - m0, after = m0 - 3 + kPairs - length;  // pairs outside of the signal
  if (before > 0 || after > 0) {
    for (int i = threadIdx.x; i < kPairs; i += kThreads) {
      if (i < before) even[i] = odd[i] = even[before];
      if (i >= kPairs - after) even[i] = odd[i] = odd[kPairs - after - 1];
    }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < kOutputs / kThreads; ++j) {
    const int i = j * kThreads + static_cast<int>(threadIdx.x);
    if (m0 + i >= length) break;
    float v = 0;
#pragma unroll
    for (int q = 0; q < 6; ++q) {
      v = fmaf(g[2 * q], odd[i + q], v);
      v = fmaf(g[2 * q + 1], even[i + 1 + q], v);
    }
    y[c * y_stride + m0 + i] = v;
  }
}

struct BlendArgs {
  const float *tile, *up, *left;
  int64_t tile_stride, up_stride, left_stride;
  int64_t h, w, overlap_up, overlap_left, first_frame;
  int pt, p;
  float* out;
  int64_t stride[4], channels, frames, rows, columns;
};

__device__ inline float raw_pixel(const float* tile, int64_t stride, const BlendArgs& a, int64_t c, int64_t f,
                                  int64_t r, int64_t x) {
  const int64_t latent = (f / a.pt * a.h + r / a.p) * a.w + x / a.p;
  const int64_t feature = ((c * a.pt + f % a.pt) * a.p + r % a.p) * a.p + x % a.p;
  return tile[latent * stride + feature];
}

__global__ void blend_kernel(BlendArgs a, int64_t total) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < total; i += int64_t{gridDim.x} * kThreads) {
    const int64_t x = i % a.columns, r = i / a.columns % a.rows, f = i / (a.columns * a.rows) % a.frames;
    const int64_t c = i / (a.columns * a.rows * a.frames), frame = a.first_frame + f;
    float v = raw_pixel(a.tile, a.tile_stride, a, c, frame, r, x);
    if (a.up != nullptr && r < a.overlap_up) {
      const float wb = static_cast<float>(r) / static_cast<float>(a.overlap_up), wa = 1.0f - wb;
      v = raw_pixel(a.up, a.up_stride, a, c, frame, a.p * a.h - a.overlap_up + r, x) * wa + v * wb;
    }
    if (a.left != nullptr && x < a.overlap_left) {
      const float wb = static_cast<float>(x) / static_cast<float>(a.overlap_left), wa = 1.0f - wb;
      v = raw_pixel(a.left, a.left_stride, a, c, frame, r, a.p * a.w - a.overlap_left + x) * wa + v * wb;
    }
    a.out[c * a.stride[0] + f * a.stride[1] + r * a.stride[2] + x * a.stride[3]] = v;
  }
}

Field field(const View& view) {
  H3_ASSERT(view.rank == 4);
  Field f{};
  f.data = reinterpret_cast<char*>(view.data);
  for (int i = 0; i < 4; ++i) f.stride[i] = view.stride[i];
  return f;
}

void check_signal(const View& x, const View& y) {
  H3_ASSERT(x.rank == 2 && y.rank == 2 && x.dim[0] == y.dim[0] && x.dim[1] == y.dim[1] && x.type == DType::f32 &&
            y.type == DType::f32 && x.stride[1] == 1 && y.stride[1] == 1);
}

}  // namespace

void CudaOps::group_norm_silu(const View& x, int groups, const View& w, const View& b, float eps, const View& y) {
  const int channels = static_cast<int>(x.dim[0] / groups);
  const LaunchShape shape{dim3(static_cast<unsigned>(groups), static_cast<unsigned>(x.dim[1])), dim3(1024), 0};
  const bool planes = dense_planes(x) && dense_planes(y);
  const auto vectors = [](const View& v) {
    return v.dim[2] * v.dim[3] % 8 == 0 && v.stride[0] * size_of(v.type) % 16 == 0 &&
           v.stride[1] * size_of(v.type) % 16 == 0 && reinterpret_cast<uintptr_t>(v.data) % 16 == 0;
  };
  if (planes && vectors(x) && vectors(y)) {
    const LaunchShape dense{shape.grid, dim3(512), 0};
    const int area = static_cast<int>(x.dim[2] * x.dim[3]);
    H3_FLOAT_TYPE_AS(
        TX, x.type,
        H3_FLOAT_TYPE_AS(TY, y.type,
                         launch(stream(), "group_norm_silu", group_norm_silu_dense_kernel<TX, TY>, dense, field(x),
                                field(y), channels, area, as<const float>(w), as<const float>(b), eps);))
    return;
  }
  H3_FLOAT_TYPE_AS(TX, x.type, H3_FLOAT_TYPE_AS(TY, y.type, {
                     const auto kernel =
                         planes ? group_norm_silu_kernel<TX, TY, true> : group_norm_silu_kernel<TX, TY, false>;
                     launch(stream(), "group_norm_silu", kernel, shape, field(x), field(y), channels, x.dim[2],
                            x.dim[3], as<const float>(w), as<const float>(b), eps);
                   }))
}

void CudaOps::snake(const View& x, const View& a, const View& inv, const View& y) {
  check_signal(x, y);
  const LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(x.dim[1], kThreads)), static_cast<unsigned>(x.dim[0])),
                          dim3(kThreads), 0};
  launch(stream(), "snake", snake_kernel, shape, as<const float>(x), x.stride[0], as<const float>(a),
         as<const float>(inv), as<float>(y), y.stride[0], x.dim[1]);
}

void CudaOps::aa_snake(const View& x, const View& a, const View& inv, const View& up, const View& down, const View& y) {
  check_signal(x, y);
  H3_ASSERT(up.elements() == 12 && down.elements() == 12);
  if (x.data == y.data) {  // neighbouring blocks read what this one would write
    const View result = make_view(device_, scratch(kSnakeScratch, x.elements() * 4), DType::f32, {x.dim[0], x.dim[1]});
    aa_snake(x, a, inv, up, down, result);
    copy(result, y);
    return;
  }
  const LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(x.dim[1], kOutputs)), static_cast<unsigned>(x.dim[0])),
                          dim3(kThreads), 0};
  launch(stream(), "aa_snake", aa_snake_kernel, shape, as<const float>(x), x.stride[0], as<const float>(a),
         as<const float>(inv), as<const float>(up), as<const float>(down), as<float>(y), y.stride[0], x.dim[1]);
}

void CudaOps::blend_tile(const TileBlend& t) {
  H3_ASSERT(t.out.type == DType::f32 && t.out.rank == 4 && t.tile.type == DType::f32 && t.tile.rank == 2);
  BlendArgs a{};
  a.tile = as<const float>(t.tile);
  a.tile_stride = t.tile.stride[0];
  if (!t.up.empty()) a.up = as<const float>(t.up), a.up_stride = t.up.stride[0];
  if (!t.left.empty()) a.left = as<const float>(t.left), a.left_stride = t.left.stride[0];
  a.h = t.h, a.w = t.w, a.pt = t.pt, a.p = t.p;
  a.overlap_up = t.overlap_up, a.overlap_left = t.overlap_left, a.first_frame = t.first_frame;
  a.out = as<float>(t.out);
  for (int i = 0; i < 4; ++i) a.stride[i] = t.out.stride[i];
  a.channels = t.out.dim[0], a.frames = t.out.dim[1], a.rows = t.out.dim[2], a.columns = t.out.dim[3];
  const int64_t total = t.out.elements();
  const LaunchShape shape{dim3(static_cast<unsigned>(std::min<int64_t>(ceil_div(total, kThreads), 132 * 32))),
                          dim3(kThreads), 0};
  launch(stream(), "blend_tile", blend_kernel, shape, a, total);
}

}  // namespace h3::cuda
