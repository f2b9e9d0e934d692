// Matrix kernels on the dot-product instructions.
#pragma once

#include "backends/cpu/isa/kernels.h"

namespace h3::isa {

extern const Gemm kBf16Avx512;
extern const Gemm kInt8Avx512;

}  // namespace h3::isa
