// Matmuls of compute capability 9.0 with what follows them in one kernel: kernels/linear_hopper.cu. Results round as
// the composition of the operations does.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace h3::cuda {

enum class FusedTail : uint8_t {
  swiglu,      // y = round(up * round(silu(gate))); rows [gate; up] of w, each as many as y has features
  scaled_add,  // stream = stream + scale * round(x w^T + bias), all of it f32
  head_norm,   // y = x w^T + bias; the first `turned` features are normed head by head and rotated
  plain        // y = x w^T + bias
};

// x [rows, depth] and w [outs, depth] of f16, or of e4m3 (u8) with one scale per row and output; y of f16.
struct FusedLinear {
  FusedTail tail = FusedTail::plain;
  DType operand = DType::f16;
  const void *x = nullptr, *w = nullptr;
  int64_t rows = 0, outs = 0, depth = 0, x_pitch = 0;  // pitches in elements
  const float* bias = nullptr;                         // [outs]
  const float *x_scale = nullptr, *w_scale = nullptr;  // e4m3: [rows], [outs]
  void* y = nullptr;
  int64_t y_pitch = 0;
  float* stream = nullptr;  // scaled_add: [rows, outs] and [outs]
  int64_t stream_pitch = 0;
  const float* scale = nullptr;
  const float *cos = nullptr, *sin = nullptr;  // head_norm: [rows, 24]; heads of 64, pairs (j, j + 24)
  int64_t table_pitch = 0, turned = 0;
  float eps = 0;
};

inline constexpr int64_t kFusedHead = 64, kFusedPairs = 24;

// Alignment, extents, and a card the kernel is built for.
bool fused_linear_takes(const FusedLinear& job);
void fused_linear(cudaStream_t stream, const FusedLinear& job);

}  // namespace h3::cuda
