// 1-D convolutions in f32 on tensor cores: every operand is split into two numbers of the tensor cores' f32 mode (11
// bits each), and three products keep what f32 keeps. The sum of one tap is added to the result in f32, because the
// tensor cores cut what they add. A transposed convolution is one convolution per phase of its output.
#include "backends/cuda/conv.h"
#include "backends/cuda/kernels/common.cuh"

namespace h3::cuda {
namespace {

constexpr int kChunk = 16;  // channels between barriers: two steps of the tensor cores per tap
constexpr int kWarps = 4, kThreads = 32 * kWarps;

struct Signal {
  const float *weight, *bias, *x;
  float* y;
  int64_t x_stride, y_stride;  // of a channel
  int64_t x_step, y_step;      // from one position to the next; of y: to the next of the same phase
  int in, out, taps, dilation, chunks, out_tiles;
  int length;     // of x
  int positions;  // of a phase, at most
  int phases, y_length;
  int shift[8];    // of a phase: tap 0 of position 0 reads x[shift]
  int y_first[8];  // of a phase: where position 0 goes
  int pitch;       // of a channel in shared memory; = 8 modulo 32: no bank conflicts
};

__device__ inline uint32_t to_tf32(float v) {
  uint32_t out;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(v));
  return out;
}

struct Split {
  uint32_t high, low;
  __device__ explicit Split(float v) {
    high = to_tf32(v);
    low = to_tf32(v - __uint_as_float(high));
  }
  Split() = default;
};

__device__ inline void product(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies one chunk of channels, [kChunk, pitch] from x[first] on; zeros outside of the signal.
__device__ inline void copy_chunk(const Signal& s, float* to, int chunk, int first, int width) {
  for (int c = threadIdx.x / 32; c < kChunk; c += kWarps) {
    const int channel = chunk * kChunk + c;
    const float* const from = s.x + channel * s.x_stride;
    for (int i = threadIdx.x % 32; i < width; i += 32) {
      const int at = first + i;
      const bool inside = channel < s.in && at >= 0 && at < s.length;
      const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to + c * s.pitch + i));
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address),
                   "l"(inside ? from + at * s.x_step : s.x), "r"(inside ? 4 : 0));
    }
  }
  asm volatile("cp.async.commit_group;");
}

// A block: kDown x kAcross warps of 16 kM outputs and 8 kN positions.
template <int kDown, int kM, int kN>
__global__ void __launch_bounds__(kThreads) conv_signal_kernel(const __grid_constant__ Signal s) {
  constexpr int kAcross = kWarps / kDown, kPositions = kAcross * 8 * kN;
  extern __shared__ float shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int phase = blockIdx.z, p0 = blockIdx.x * kPositions, mine = warp % kAcross * 8 * kN;
  const int tile0 = (blockIdx.y * kDown + warp / kAcross) * kM;  // of sixteen outputs
  const int width = kPositions + (s.taps - 1) * s.dilation, first = p0 + s.shift[phase];
  const int steps = s.chunks * s.taps * 2;  // of eight channels and a tap
  // [phase][tile][step][lane] of four weights.
  const float4* weight[kM];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    const int tile = min(tile0 + m, s.out_tiles - 1);  // beyond the last: its results are not stored
    weight[m] = reinterpret_cast<const float4*>(s.weight) +
                (static_cast<int64_t>(phase) * s.out_tiles + tile) * steps * 32 + lane;
  }
  // The weights of the next tap are on their way while one is multiplied.
  float4 ahead[2][kM];
  int next = 0;
  const auto load_ahead = [&] {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int m = 0; m < kM; ++m) ahead[half][m] = __ldg(weight[m] + (next + half) * 32);
    }
    next = min(next + 2, steps - 2);
  };
  float sum[kM][kN][4] = {};
  copy_chunk(s, shared, 0, first, width);
  load_ahead();
  for (int chunk = 0; chunk < s.chunks; ++chunk) {
    if (chunk + 1 < s.chunks) {
      copy_chunk(s, shared + (chunk + 1) % 2 * kChunk * s.pitch, chunk + 1, first, width);
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
    const float* const x = shared + chunk % 2 * kChunk * s.pitch + t * s.pitch + mine + g;
    for (int tap = 0; tap < s.taps; ++tap) {
      float4 now[2][kM];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int m = 0; m < kM; ++m) now[half][m] = ahead[half][m];
      }
      load_ahead();
      float part[kM][kN][4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t high[kM][4], low[kM][4];
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          const float values[4] = {now[half][m].x, now[half][m].y, now[half][m].z, now[half][m].w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const Split split(values[i]);
            high[m][i] = split.high, low[m][i] = split.low;
          }
        }
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const float* const from = x + half * 8 * s.pitch + tap * s.dilation + 8 * n;
          const Split b0(from[0]), b1(from[4 * s.pitch]);
#pragma unroll
          for (int m = 0; m < kM; ++m) {
            product(part[m][n], low[m], b0.high, b1.high);
            product(part[m][n], high[m], b0.low, b1.low);
            product(part[m][n], high[m], b0.high, b1.high);
          }
        }
      }
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[m][n][i] += part[m][n][i];
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int o = (tile0 + m) * 16 + g + 8 * h;
      if (o >= s.out) continue;
      const float bias = s.bias != nullptr ? s.bias[o] : 0.0f;
      float* const y = s.y + o * s.y_stride;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int64_t p = int64_t{p0 + mine + 8 * n + 2 * t + e} * s.phases + s.y_first[phase];
          if (p < s.y_length) y[p * s.y_step] = sum[m][n][2 * h + e] + bias;
        }
      }
    }
  }
}

template <int kDown, int kM, int kN>
void launch_signal(cudaStream_t stream, const char* label, Signal& s, int phases) {
  constexpr int kPositions = kWarps / kDown * 8 * kN;
  const int width = kPositions + (s.taps - 1) * s.dilation;
  s.pitch = (width + 23) / 32 * 32 + 8;
  const LaunchShape shape{dim3(static_cast<unsigned>(ceil_div(s.positions, kPositions)),
                               static_cast<unsigned>(ceil_div(s.out_tiles, kDown * kM)), static_cast<unsigned>(phases)),
                          dim3(kThreads), static_cast<size_t>(2 * kChunk * s.pitch) * 4};
  launch(stream, label, conv_signal_kernel<kDown, kM, kN>, shape, s);
}

constexpr int kMaxPhases = 8, kMaxReach = 64;
constexpr int64_t kManyBlocks = 300;

}  // namespace

bool conv_signal_takes(const ConvSpec& spec) {
  if (spec.compute != Compute::f32 || spec.in < 8 || spec.out < 8) return false;
  if (spec.kind == ConvKind::transposed1d) {
    return spec.dilation[2] == 1 && spec.stride[2] <= kMaxPhases && spec.kernel[2] >= spec.stride[2];
  }
  return spec.kind == ConvKind::conv1d && spec.stride[2] == 1 && (spec.kernel[2] - 1) * spec.dilation[2] <= kMaxReach;
}

// Weights in the order in which the lanes of a warp hold them: [phase, outputs / 16, chunk, tap, half a chunk, lane,
// 4].
void pack_signal_weight(CudaDevice& device, CudaConv& conv) {
  const ConvSpec& spec = conv.spec;
  const bool transposed = spec.kind == ConvKind::transposed1d;
  const int kernel = spec.kernel[2], phases = transposed ? spec.stride[2] : 1;
  const int taps = (kernel + phases - 1) / phases;
  const int64_t tiles = ceil_div(spec.out, 16), chunks = ceil_div(spec.in, kChunk);
  std::vector<float> packed;
  packed.reserve(static_cast<size_t>(phases * tiles * chunks * taps * 2 * 128));
  const auto value = [&](int phase, int64_t o, int64_t c, int tap) {
    // The last tap of a phase meets the newest input.
    const int j = transposed ? phase + (taps - 1 - tap) * phases : tap;
    if (o >= spec.out || c >= spec.in || j >= kernel) return 0.0f;
    return spec.weight[static_cast<size_t>((transposed ? c * spec.out + o : o * spec.in + c) * kernel + j)];
  };
  for (int phase = 0; phase < phases; ++phase) {
    for (int64_t tile = 0; tile < tiles; ++tile) {
      for (int64_t c0 = 0; c0 < chunks * kChunk; c0 += kChunk) {
        for (int step = 0; step < 2 * taps; ++step) {
          for (int lane = 0; lane < 32; ++lane) {
            for (int i = 0; i < 4; ++i) {
              const int64_t o = tile * 16 + lane / 4 + i % 2 * 8, c = c0 + step % 2 * 8 + lane % 4 + i / 2 * 4;
              packed.push_back(value(phase, o, c, step / 2));
            }
          }
        }
      }
    }
  }
  conv.weight = device.allocate(static_cast<int64_t>(packed.size()) * 4, spec.label.c_str());
  device.upload(packed.data(),
                make_view(device, conv.weight.data(), DType::f32, {static_cast<int64_t>(packed.size())}));
  conv.kernel = "implicit_3xtf32";
  conv.signal = true;
}

void conv_signal(CudaOps& ops, const CudaConv& conv, const View& x, const View& y) {
  const ConvSpec& spec = conv.spec;
  H3_ASSERT(x.rank == 2 && y.rank == 2 && x.dim[1] < INT32_MAX / 2 && y.dim[1] < INT32_MAX / 2);
  if (x.type != DType::f32 || y.type != DType::f32) {
    const auto wide = [&](const View& like, int slot) {
      return make_view(ops.device(), ops.scratch(slot, 4 * like.elements()), DType::f32, {like.dim[0], like.dim[1]});
    };
    const View wide_x = wide(x, kExpansionScratch), wide_y = wide(y, kAttentionScratch);
    ops.copy(x, wide_x);
    conv_signal(ops, conv, wide_x, wide_y);
    ops.copy(wide_y, y);
    return;
  }
  const bool transposed = spec.kind == ConvKind::transposed1d;
  const int phases = transposed ? spec.stride[2] : 1, pad = spec.pad_before[2];
  Signal s{};
  s.weight = static_cast<const float*>(conv.weight.data());
  s.bias = static_cast<const float*>(conv.bias_buffer.data());
  s.x = as<const float>(x), s.y = as<float>(y);
  s.x_stride = x.stride[0], s.y_stride = y.stride[0];
  s.x_step = x.stride[1], s.y_step = y.stride[1];
  s.in = static_cast<int>(spec.in), s.out = static_cast<int>(spec.out);
  s.taps = (spec.kernel[2] + phases - 1) / phases;
  s.dilation = transposed ? 1 : spec.dilation[2];
  s.chunks = static_cast<int>(ceil_div(spec.in, kChunk)), s.out_tiles = static_cast<int>(ceil_div(spec.out, 16));
  s.length = static_cast<int>(x.dim[1]);
  s.positions = static_cast<int>(ceil_div(y.dim[1], phases));
  s.phases = phases, s.y_length = static_cast<int>(y.dim[1]);
  s.shift[0] = -pad;
  for (int r = 0; transposed && r < phases; ++r) {
    // Output q is element q + pad = m phases + r of the full one: sum over i of x[m - i] w[r + i phases].
    const int m = static_cast<int>(ceil_div(std::max(pad - r, 0), phases));
    s.shift[r] = m - (s.taps - 1);
    s.y_first[r] = m * phases + r - pad;
  }
  const char* label = conv.label.c_str();
  // Small tiles where large ones would leave multiprocessors idle.
  const int64_t large = ceil_div(s.out_tiles, 4) * ceil_div(s.positions, 64) * phases;
  if (s.out_tiles >= 4 && large >= kManyBlocks)
    launch_signal<2, 2, 4>(ops.stream(), label, s, phases);
  else if (s.out_tiles >= 4)
    launch_signal<2, 1, 4>(ops.stream(), label, s, phases);
  else if (s.out_tiles >= 2)
    launch_signal<1, 2, 4>(ops.stream(), label, s, phases);
  else
    launch_signal<1, 1, 8>(ops.stream(), label, s, phases);
}

}  // namespace h3::cuda
