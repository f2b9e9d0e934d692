#pragma once

#include "tensor/tensor.h"

namespace h3 {

// [n, d] of one head, from [S, H, D] or [B, S, H, D].
inline View head_of(const View& all, int64_t batch, int64_t head) {
  const View one = all.rank == 4 ? all.select(0, batch) : all;
  return one.select(1, head);
}

}  // namespace h3
