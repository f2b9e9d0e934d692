// The matrix kernels of the CPU in order of preference, and why each refuses a product.
#pragma once

#include <string>
#include <vector>

#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa_level.h"
#include "ops/ops.h"

namespace h3 {

struct MatmulDesc {
  Compute compute = Compute::f32;
  int64_t in = 0, out = 0;
  Format format = Format::f32;
};

struct MatmulKernel {
  const char* name;
  const isa::Gemm* (*gemm)(const isa::Level& level);
  bool decode;  // weights stay in their stored format and are unpacked block by block in every call
  // Null when the kernel can run the product, else the reason.
  const char* (*reject)(const MatmulDesc& desc, IsaLevel level);
};

struct MatmulChoice {
  const MatmulKernel* kernel = nullptr;
  std::vector<std::string> refusals;
};

// The first kernel that does not refuse; a pure function of its arguments.
MatmulChoice choose_matmul(const MatmulDesc& desc, IsaLevel level);

}  // namespace h3
