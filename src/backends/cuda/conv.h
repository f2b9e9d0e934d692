// A convolution on the card, as its two kernels hold it.
#pragma once

#include "backends/cuda/backend.h"

namespace h3::cuda {

struct CudaConv final : Conv {
  // implicit_f32_fma: weight [out, depth] f32. implicit_tensor: 16-bit [out_padded, chunks, taps, 32], zeros beyond the
  // rows and channels. implicit_3xtf32: f32 in the order of kernels/conv_signal.cu.
  Buffer weight, bias_buffer;  // bias [out] f32
  int64_t depth = 0;
  bool tensor = false, signal = false;
};

// kernels/conv_tensor.cu, for conv3d in bf16 and f16. Packs conv.spec.weight.
void pack_tensor_weight(CudaDevice& device, CudaConv& conv);
void conv_tensor(CudaOps& ops, const CudaConv& conv, const View& x, const View& y);

// kernels/conv_signal.cu, for 1-D convolutions in f32 whose operands are signals without gaps. Packs conv.spec.weight.
bool conv_signal_takes(const ConvSpec& spec);
void pack_signal_weight(CudaDevice& device, CudaConv& conv);
void conv_signal(CudaOps& ops, const CudaConv& conv, const View& x, const View& y);

}  // namespace h3::cuda
