// The attention kernels of compute capability 9.0, without an Ops.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tensor/dtype.h"

namespace h3::cuda {

// Heads of [rows, d] of `batch` sequences, unit stride on d; strides in elements.
struct HeadsOfAttention {
  const void *q, *k, *v;
  void* out;
  int64_t q_row, q_head, k_row, k_head, v_row, v_head, o_row, o_head;
  int64_t q_batch, k_batch, v_batch, o_batch;
  int64_t queries, keys;
  int heads, batch, d;
  DType type;
  float scale_log2;
};

// kernels/attention_hopper.cu: whether card, build, type, head size and strides allow it, and the call.
bool attention_hopper_takes(const HeadsOfAttention& a);
void attention_hopper(cudaStream_t stream, const HeadsOfAttention& a);
// kernels/attention_hopper_64.cu: of it the heads of 64.
void attention_hopper_64(cudaStream_t stream, const HeadsOfAttention& a);

// kernels/attention_eight_bit.cu: AttentionMath::eight_bit for heads of 128. Empty = this card and build have it.
const char* refuses_attention_eight_bit(int64_t d);
int64_t attention_eight_bit_bytes(int64_t queries, int64_t keys, int64_t heads);  // of `scratch`
void attention_eight_bit(cudaStream_t stream, const HeadsOfAttention& a, void* scratch);

}  // namespace h3::cuda
