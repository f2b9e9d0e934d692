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
  IsaLevel level;  // that it belongs to
  bool decode;     // weights stay in their stored format and are unpacked block by block in every call
  // Null when the kernel of level `own` can run the product where `level` is used, else the reason.
  const char* (*reject)(const MatmulDesc& desc, IsaLevel own, IsaLevel level);
};

struct MatmulChoice {
  const MatmulKernel* kernel = nullptr;
  const isa::Gemm* gemm = nullptr;
  std::vector<std::string> refusals;
};

// The first kernel that does not refuse, or the one that is forced where it can run the product at all; a pure function
// of its arguments.
MatmulChoice choose_matmul(const MatmulDesc& desc, IsaLevel level, const std::string& forced = "");

// What becomes of a weight: its kernel, whether every call expands it from its stored format or its codes are used as
// they are, and how plans name that.
struct LinearChoice {
  const isa::Gemm* gemm = nullptr;
  bool expands = false;
  int64_t rotation = 0;  // Linear::rotation
  std::string kernel;
  std::vector<std::string> refusals;
};
LinearChoice choose_linear(const LinearSpec& spec, IsaLevel level, const std::string& forced);

// "cpu", or "cpu,linear=KERNEL": the back end with a kernel forced, as make_backend takes it.
std::string cpu_name(const std::string& forced_linear);

// Error(usage) unless `name` is a kernel that this level of the host has.
void check_forced_matmul(const std::string& name, IsaLevel level);

}  // namespace h3
