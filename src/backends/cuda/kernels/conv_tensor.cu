// 3-D convolutions of 16-bit operands on tensor cores, f32 accumulation.
//
// The input is first laid out channels last with its padding made explicit, so that every tap of an output position is
// one offset away: X[t, h, w, c], c padded to 32. Then out[o, p] = sum over (chunk of 32 channels, tap) of
// W[o, chunk, tap, :] . X[base(p) + offset(tap), chunk, :], a matmul of 128 x 128 tiles whose right operand is gathered
// by asynchronous copies. The order of the sum is fixed. Taps turn fastest, because neighbours along w reread the same
// lines.
#include <cuda_pipeline_primitives.h>
#include <mma.h>

#include "backends/cuda/conv.h"
#include "backends/cuda/kernels/common.cuh"
#include "codec/scalar.h"

namespace h3::cuda {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int kTile = 128;          // outputs and positions of a block
constexpr int kChunk = 32;          // channels of a step
constexpr int kPitch = kChunk + 8;  // of a row in shared memory: no bank conflicts, 16-byte rows
constexpr int kStages = 4;          // steps in flight
constexpr int kThreads = 128;       // four warps of 64 x 64
constexpr int kStageElements = 2 * kTile * kPitch;
constexpr int kResultPitch = 64 + 4;  // f32, of a warp's 16 x 64 results on their way out

struct PadShape {
  int64_t x_stride[4];  // channel, t, h, w; elements
  int64_t in[3], padded[3];
  int pad[3];
  int64_t channels, channels_padded;
  bool reflect;
};

struct TensorShape {
  int64_t y_stride[4];
  int64_t out[3], padded[3];
  int kernel[3], stride[3], dilation[3];
  int64_t channels_out, channels_padded, positions;
  int out_tiles, taps, steps;  // steps = taps * chunks
};

__device__ inline int64_t reflected(int64_t i, int64_t n) {
  if (n == 1) return 0;
  while (i < 0 || i >= n) i = i < 0 ? -i : 2 * (n - 1) - i;
  return i;
}

template <typename T>
__device__ inline T operand(float v) {
  if constexpr (std::is_same_v<T, __half>) v = v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v;  // NaN stays
  return from_float<T>(v);
}

// x [C, T, H, W] of any type and strides -> X [T', H', W', C'] of T. One block: 32 columns, 64 channels of one line.
template <typename TX, typename T>
__global__ void __launch_bounds__(256) pad_channels_last_kernel(const TX* x, T* out, PadShape s) {
  __shared__ T tile[32][64 + 2];
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
  const int64_t blocks = (s.channels_padded + 63) / 64;
  const int64_t c0 = blockIdx.z % blocks * 64, tp = blockIdx.z / blocks, hp = blockIdx.y, w0 = blockIdx.x * int64_t{32};
  int64_t t = tp - s.pad[0], h = hp - s.pad[1], w = w0 + lane - s.pad[2];
  bool inside = t >= 0 && t < s.in[0] && w0 + lane < s.padded[2];
  if (s.reflect) {
    h = reflected(h, s.in[1]);
    w = inside ? reflected(w, s.in[2]) : 0;
  } else {
    inside = inside && h >= 0 && h < s.in[1] && w >= 0 && w < s.in[2];
  }
  for (int i = row; i < 64; i += 8) {
    const int64_t c = c0 + i;
    float v = 0;
    if (inside && c < s.channels) {
      v = to_float(x[c * s.x_stride[0] + t * s.x_stride[1] + h * s.x_stride[2] + w * s.x_stride[3]]);
    }
    tile[lane][i] = operand<T>(v);
  }
  __syncthreads();
  if (c0 + 2 * lane >= s.channels_padded) return;
  for (int i = row; i < 32 && w0 + i < s.padded[2]; i += 8) {
    T* const to = out + ((tp * s.padded[1] + hp) * s.padded[2] + w0 + i) * s.channels_padded + c0;
    reinterpret_cast<uint32_t*>(to)[lane] = reinterpret_cast<const uint32_t*>(tile[i])[lane];
  }
}

// Which tap of which chunk the next step reads, as an offset into X.
struct Walk {
  int kt = 0, kh = 0, kw = 0;
  int64_t chunk = 0;
  __device__ int64_t offset(const TensorShape& s) const {
    const int64_t line = static_cast<int64_t>(kt * s.dilation[0]) * s.padded[1] + kh * s.dilation[1];
    return (line * s.padded[2] + kw * s.dilation[2]) * s.channels_padded + chunk;
  }
  __device__ void advance(const TensorShape& s) {
    if (++kw < s.kernel[2]) return;
    kw = 0;
    if (++kh < s.kernel[1]) return;
    kh = 0;
    if (++kt < s.kernel[0]) return;
    kt = 0;
    chunk += kChunk;
  }
};

// Through the first-level cache where neighbours will read the same lines again, else past it.
template <bool kReread>
__device__ inline void copy_async(void* to, const void* from) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (kReread) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from));
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from));
  }
}

template <typename T, typename TY>
__global__ void __launch_bounds__(kThreads, 2)
    conv_tensor_kernel(const T* weight, const float* bias, const T* x, TY* y, TensorShape s) {
  extern __shared__ __align__(128) unsigned char shared[];
  T* const stages = reinterpret_cast<T*>(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t o0 = blockIdx.x % s.out_tiles * int64_t{kTile}, p0 = blockIdx.x / s.out_tiles * int64_t{kTile};
  const int warp_o = warp / 2 * 64, warp_p = warp % 2 * 64;

  // Every thread copies a quarter of rows r, r + 32, r + 64, r + 96 of both operands.
  const int r = threadIdx.x / 4, part = threadIdx.x % 4 * 8;
  const int64_t weight_row = static_cast<int64_t>(s.steps) * kChunk;
  const T* const from_weight = weight + (o0 + r) * weight_row + part;
  const T* from_x[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    int64_t p = p0 + r + 32 * j;
    if (p >= s.positions) p = 0;  // its results are not stored
    const int64_t w = p % s.out[2], h = p / s.out[2] % s.out[1], t = p / (s.out[2] * s.out[1]);
    const int64_t line = t * s.stride[0] * s.padded[1] + h * s.stride[1];
    from_x[j] = x + (line * s.padded[2] + w * s.stride[2]) * s.channels_padded + part;
  }
  Walk walk;
  const auto copy_step = [&](int step) {
    T* const a = stages + step % kStages * kStageElements + r * kPitch + part;
    T* const b = a + kTile * kPitch;
    const int64_t offset = walk.offset(s);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      copy_async<false>(a + 32 * j * kPitch, from_weight + 32 * j * weight_row + int64_t{step} * kChunk);
      copy_async<true>(b + 32 * j * kPitch, from_x[j] + offset);
    }
    walk.advance(s);
  };

  wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) wmma::fill_fragment(acc[i][j], 0.0f);
  }
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < s.steps) copy_step(step);
    __pipeline_commit();
  }
  for (int step = 0; step < s.steps; ++step) {
    __pipeline_wait_prior(kStages - 2);  // this step has arrived
    __syncthreads();                     // for everybody, and nobody still reads the stage filled next
    if (step + kStages - 1 < s.steps) copy_step(step + kStages - 1);
    __pipeline_commit();
    const T* const a = stages + step % kStages * kStageElements + warp_o * kPitch;
    const T* const b = stages + step % kStages * kStageElements + (kTile + warp_p) * kPitch;
#pragma unroll
    for (int k = 0; k < kChunk; k += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> left[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) wmma::load_matrix_sync(left[i], a + 16 * i * kPitch + k, kPitch);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> right;
        wmma::load_matrix_sync(right, b + 16 * j * kPitch + k, kPitch);
#pragma unroll
        for (int i = 0; i < 4; ++i) wmma::mma_sync(acc[i][j], left[i], right, acc[i][j]);
      }
    }
  }
  __pipeline_wait_prior(0);
  __syncthreads();  // the stages become room for results

  float* const results = reinterpret_cast<float*>(shared) + warp * 16 * kResultPitch;
  int64_t to[2];
  bool stored[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int64_t p = p0 + warp_p + lane + 32 * j;
    const int64_t w = p % s.out[2], h = p / s.out[2] % s.out[1], t = p / (s.out[2] * s.out[1]);
    to[j] = t * s.y_stride[1] + h * s.y_stride[2] + w * s.y_stride[3];
    stored[j] = p < s.positions;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      wmma::store_matrix_sync(results + 16 * j, acc[i][j], kResultPitch, wmma::mem_row_major);
    }
    __syncwarp();
    for (int row = 0; row < 16; ++row) {
      const int64_t o = o0 + warp_o + 16 * i + row;
      if (o >= s.channels_out) break;
      const float b = bias != nullptr ? bias[o] : 0.0f;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float v = results[row * kResultPitch + lane + 32 * j] + b;
        if (stored[j]) y[o * s.y_stride[0] + to[j]] = from_float<TY>(v);
      }
    }
    __syncwarp();
  }
}

template <typename T>
void run(CudaOps& ops, const CudaConv& conv, const View& x, const View& y, const PadShape& pad,
         const TensorShape& shape) {
  const int64_t elements = pad.padded[0] * pad.padded[1] * pad.padded[2] * pad.channels_padded;
  T* const padded = static_cast<T*>(ops.scratch(kExpansionScratch, elements * int64_t{sizeof(T)}));
  const int64_t channel_blocks = ceil_div(pad.channels_padded, 64);
  const LaunchShape pad_launch{
      dim3(static_cast<unsigned>(ceil_div(pad.padded[2], 32)), static_cast<unsigned>(pad.padded[1]),
           static_cast<unsigned>(pad.padded[0] * channel_blocks)),
      dim3(256), 0};
  H3_FLOAT_TYPE_AS(TX, x.type,
                   launch(ops.stream(), conv.label.c_str(), pad_channels_last_kernel<TX, T>, pad_launch,
                          as<const TX>(x), padded, pad);)
  const LaunchShape matmul{dim3(static_cast<unsigned>(ceil_div(shape.positions, kTile) * shape.out_tiles)),
                           dim3(kThreads), size_t{kStages} * kStageElements * sizeof(T)};
  H3_FLOAT_TYPE_AS(TY, y.type,
                   launch(ops.stream(), conv.label.c_str(), conv_tensor_kernel<T, TY>, matmul,
                          reinterpret_cast<const T*>(conv.weight.data()),
                          reinterpret_cast<const float*>(conv.bias_buffer.data()), padded, as<TY>(y), shape);)
}

}  // namespace

void pack_tensor_weight(CudaDevice& device, CudaConv& conv) {
  const ConvSpec& spec = conv.spec;
  const int64_t taps = int64_t{spec.kernel[0]} * spec.kernel[1] * spec.kernel[2];
  const int64_t chunks = ceil_div(spec.in, kChunk), rows = ceil_div(spec.out, kTile) * kTile;
  std::vector<uint16_t> packed(static_cast<size_t>(rows * chunks * taps * kChunk));
  for (int64_t o = 0; o < spec.out; ++o) {
    for (int64_t c = 0; c < spec.in; ++c) {
      for (int64_t tap = 0; tap < taps; ++tap) {
        const float v = spec.weight[(o * spec.in + c) * taps + tap];
        const float limited = v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v;
        packed[((o * chunks + c / kChunk) * taps + tap) * kChunk + c % kChunk] =
            spec.compute == Compute::bf16 ? f32_to_bf16(v) : f32_to_f16(limited);
      }
    }
  }
  const int64_t count = static_cast<int64_t>(packed.size());
  conv.weight = device.allocate(count * 2, spec.label.c_str());
  device.upload(packed.data(), make_view(device, conv.weight.data(), DType::f16, {count}));
  conv.kernel = "implicit_tensor";
  conv.tensor = true;
}

void conv_tensor(CudaOps& ops, const CudaConv& conv, const View& x, const View& y) {
  const ConvSpec& spec = conv.spec;
  PadShape pad{};
  TensorShape shape{};
  shape.positions = 1;
  shape.taps = 1;
  for (int i = 0; i < 4; ++i) pad.x_stride[i] = x.stride[i], shape.y_stride[i] = y.stride[i];
  for (int i = 0; i < 3; ++i) {
    pad.in[i] = x.dim[i + 1];
    pad.pad[i] = spec.pad_before[i];
    shape.out[i] = y.dim[i + 1];
    shape.kernel[i] = spec.kernel[i], shape.stride[i] = spec.stride[i], shape.dilation[i] = spec.dilation[i];
    pad.padded[i] = (shape.out[i] - 1) * spec.stride[i] + (spec.kernel[i] - 1) * int64_t{spec.dilation[i]} + 1;
    shape.padded[i] = pad.padded[i];
    shape.positions *= shape.out[i];
    shape.taps *= spec.kernel[i];
  }
  pad.channels = spec.in;
  pad.channels_padded = shape.channels_padded = ceil_div(spec.in, kChunk) * kChunk;
  pad.reflect = spec.spatial_pad == Pad::reflect;
  shape.channels_out = spec.out;
  shape.out_tiles = static_cast<int>(ceil_div(spec.out, kTile));
  shape.steps = static_cast<int>(shape.taps * (shape.channels_padded / kChunk));
  if (spec.compute == Compute::bf16) {
    run<bf16>(ops, conv, x, y, pad, shape);
  } else {
    run<__half>(ops, conv, x, y, pad, shape);
  }
}

}  // namespace h3::cuda
