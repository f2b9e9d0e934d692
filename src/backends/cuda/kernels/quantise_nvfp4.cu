// Rows of activations as NVFP4 (codec/nvfp4_row.h).
#include "backends/cuda/kernels/float8.cuh"
#include "codec/nvfp4_row.h"

namespace h3::cuda {
namespace {

constexpr int kThreads = 256;

// Two reads of the row, as quantise_float8_kernel. Blocks behind the rows fill their part of the scales with zeros, and
// so do the last threads of a row where the blocks are no multiple of four.
template <typename T, bool kVec>
__global__ void __launch_bounds__(kThreads)
    quantise_nvfp4_kernel(const T* x, int64_t stride, int64_t rows, int64_t cols, float* factor, uint8_t* codes,
                          uint8_t* scales) {
  __shared__ uint32_t tops[kThreads / 32];
  const int64_t row = blockIdx.x, blocks = cols / 16, padded = round_up_to(blocks, 4);
  const T* const in = x + row * stride;
  const auto load = [&](int64_t block, float(&v)[16]) {
    if constexpr (kVec) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Vec8<T> eight;
        eight.load(in + 16 * block + 8 * half);
#pragma unroll
        for (int i = 0; i < 8; ++i) v[8 * half + i] = eight.v[i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) v[i] = to_float(in[16 * block + i]);
    }
  };
  uint32_t top = 0;
  for (int64_t block = threadIdx.x; row < rows && block < blocks; block += kThreads) {
    float v[16];
    load(block, v);
#pragma unroll
    for (int i = 0; i < 16; ++i) top = max(top, magnitude_bits(v[i]));
  }
  const float absmax = block_max<kThreads>(top, tops), global = nvfp4_row_global(absmax);
  if (threadIdx.x == 0 && row < rows) factor[row] = nvfp4_row_factor(absmax);
  for (int64_t block = threadIdx.x; block < padded; block += kThreads) {
    uint8_t scale = 0;
    if (row < rows && block < blocks) {
      float v[16];
      uint2 eight;
      load(block, v);
      scale = nvfp4_encode_block(v, global, reinterpret_cast<uint8_t*>(&eight));
      *reinterpret_cast<uint2*>(codes + row * nvfp4_row_bytes(cols) + 8 * block) = eight;
    }
    scales[nvfp4_scale_offset(row, block, cols)] = scale;
  }
}

}  // namespace

void quantise_nvfp4_rows(cudaStream_t stream, const View& x, float* factor, uint8_t* codes, uint8_t* scales) {
  H3_ASSERT(x.rank == 2 && x.dim[1] % 16 == 0 && x.stride[1] == 1);
  const LaunchShape shape{dim3(static_cast<unsigned>(round_up_to(x.dim[0], 128))), dim3(kThreads), 0};
  const bool vectors = vectorises(x);
  H3_FLOAT_TYPE(x.type, const auto kernel = vectors ? quantise_nvfp4_kernel<T, true> : quantise_nvfp4_kernel<T, false>;
                launch(stream, "quantise_nvfp4", kernel, shape, as<const T>(x), x.stride[0], x.dim[0], x.dim[1], factor,
                       codes, scales);)
}

void CudaOps::quantise_nvfp4(const View& x, const View& factors, const View& codes, const View& scales) {
  const int64_t rows = x.dim[0], cols = x.dim[1];
  H3_ASSERT(codes.contiguous() && codes.bytes() == rows * nvfp4_row_bytes(cols));
  H3_ASSERT(scales.contiguous() && scales.bytes() == nvfp4_scale_bytes(rows, cols));
  H3_ASSERT(factors.contiguous() && factors.elements() == rows && factors.type == DType::f32);
  quantise_nvfp4_rows(stream(), x, as<float>(factors), as<uint8_t>(codes), as<uint8_t>(scales));
}

}  // namespace h3::cuda
