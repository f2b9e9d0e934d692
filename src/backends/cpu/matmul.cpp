#include "backends/cpu/matmul.h"

#include <algorithm>
#include <utility>

#include "backends/cpu/packed_weights.h"
#include "base/error.h"
#include "base/nearest.h"

namespace h3 {
namespace {

const isa::Gemm* int8_of(const isa::Level& level) { return level.int8; }
const isa::Gemm* bf16_of(const isa::Level& level) { return level.bf16; }
const isa::Gemm* f32_of(const isa::Level& level) { return level.f32; }

// A level's table holds one kernel per type, so a kernel runs exactly at its own level.
const char* reject_level(IsaLevel own, IsaLevel level) {
  if (level == own) return nullptr;
  return level < own ? "the instruction set is not available or capped" : "a faster level is used";
}

const char* reject_int8(const MatmulDesc& desc, IsaLevel own, IsaLevel level) {
  if (desc.compute != Compute::int8) return "computes in int8, which was not asked for";
  if (desc.in > 65536) return "more than 65536 columns may overflow the 32-bit sums";
  return reject_level(own, level);
}

const char* reject_bf16(const MatmulDesc& desc, IsaLevel own, IsaLevel level) {
  if (desc.compute != Compute::bf16) return "rounds operands to bf16, which was not asked for";
  return reject_level(own, level);
}

const char* reject_f32(const MatmulDesc& desc, IsaLevel own, IsaLevel level) {
  if (desc.compute == Compute::packed) return "would unpack weights that are to stay in their format";
  if (desc.compute != Compute::f32 && desc.compute != Compute::f16) return "computes in f32, which was not asked for";
  // The AMX level has no f32 tiles: AVX-512 serves both.
  return reject_level(own, own == IsaLevel::avx512 && level == IsaLevel::amx ? own : level);
}

const char* reject_decode(const MatmulDesc&, IsaLevel, IsaLevel) { return nullptr; }

// Only what makes a product impossible or another one: that there is a faster kernel is no reason.
const char* reject_forced(const MatmulKernel& kernel, const MatmulDesc& desc, IsaLevel level) {
  if (kernel.level > level) return "the instruction set is not available or capped";
  if (!kernel.decode) return kernel.reject(desc, kernel.level, kernel.level);
  return desc.compute == Compute::bf16 || desc.compute == Compute::int8 ? "computes in f32, which was not asked for"
                                                                        : nullptr;
}

constexpr MatmulKernel kKernels[] = {
    {"int8_amx", int8_of, IsaLevel::amx, false, reject_int8},
    {"int8_avx512", int8_of, IsaLevel::avx512, false, reject_int8},
    {"int8_avx2", int8_of, IsaLevel::avx2, false, reject_int8},
    {"int8_scalar", int8_of, IsaLevel::scalar, false, reject_int8},
    {"bf16_amx", bf16_of, IsaLevel::amx, false, reject_bf16},
    {"bf16_avx512", bf16_of, IsaLevel::avx512, false, reject_bf16},
    {"bf16_avx2", bf16_of, IsaLevel::avx2, false, reject_bf16},
    {"bf16_scalar", bf16_of, IsaLevel::scalar, false, reject_bf16},
    {"f32_avx512", f32_of, IsaLevel::avx512, false, reject_f32},
    {"f32_avx2", f32_of, IsaLevel::avx2, false, reject_f32},
    {"f32_scalar", f32_of, IsaLevel::scalar, false, reject_f32},
    {"decode_f32", f32_of, IsaLevel::scalar, true, reject_decode},
};

}  // namespace

MatmulChoice choose_matmul(const MatmulDesc& desc, IsaLevel level, const std::string& forced) {
  MatmulChoice choice;
  const auto take = [&](const MatmulKernel& kernel) {
    choice.kernel = &kernel;
    choice.gemm = kernel.gemm(kernels_of(kernel.decode ? level : std::min(kernel.level, level)));
    return choice;
  };
  const MatmulKernel* wanted = nullptr;
  for (const MatmulKernel& kernel : kKernels) {
    if (forced != kernel.name) continue;
    const char* const reason = reject_forced(kernel, desc, level);
    if (reason == nullptr) wanted = &kernel;
    if (reason != nullptr) choice.refusals.push_back(forced + ", which is forced: " + reason);
  }
  for (const MatmulKernel& kernel : kKernels) {
    if (&kernel == wanted) return take(kernel);
    const char* const reason = kernel.reject(desc, kernel.level, level);
    if (reason == nullptr && wanted == nullptr) return take(kernel);
    choice.refusals.push_back(std::string(kernel.name) + ": " + (reason == nullptr ? "another one is forced" : reason));
  }
  H3_ASSERT(false);
  return choice;
}

LinearChoice choose_linear(const LinearSpec& spec, IsaLevel level, const std::string& forced) {
  MatmulChoice matmul =
      choose_matmul({spec.compute, spec.weight.cols, spec.weight.rows, spec.weight.format()}, level, forced);
  LinearChoice choice;
  choice.gemm = matmul.gemm;
  choice.expands = matmul.kernel->decode || stays_packed(spec.weight, spec.compute);
  choice.kernel = matmul.kernel->name;
  choice.refusals = std::move(matmul.refusals);
  if (!choice.expands && choice.gemm->integer) choice.rotation = rotation_of_codes(spec.weight);
  if (choice.expands || choice.rotation > 0) choice.kernel += std::string(" on ") + row_of(spec.weight.format()).name;
  if (!choice.expands && choice.gemm->integer) {
    if (std::string reason = requantised(spec.weight); !reason.empty()) choice.refusals.push_back(std::move(reason));
  }
  return choice;
}

std::string cpu_name(const std::string& forced_linear) {
  return forced_linear.empty() ? "cpu" : "cpu,linear=" + forced_linear;
}

void check_forced_matmul(const std::string& name, IsaLevel level) {
  std::vector<std::string> names;
  std::string list;
  for (const MatmulKernel& kernel : kKernels) {
    if (kernel.level > level) continue;
    if (name == kernel.name) return;
    names.emplace_back(kernel.name);
    list += (list.empty() ? "" : ", ") + names.back();
  }
  fail(Code::usage, "force: linear=%s is not a kernel of this machine at %s, give one of %s%s", name.c_str(),
       name_of(level), list.c_str(), suggestion(name, names).c_str());
}

}  // namespace h3
