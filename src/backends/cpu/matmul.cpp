#include "backends/cpu/matmul.h"

#include "base/error.h"

namespace h3 {
namespace {

const isa::Gemm* int8_of(const isa::Level& level) { return level.int8; }
const isa::Gemm* bf16_of(const isa::Level& level) { return level.bf16; }
const isa::Gemm* f32_of(const isa::Level& level) { return level.f32; }

// A level's table holds one kernel per type, so a kernel runs exactly at its level.
template <IsaLevel Level>
const char* at_level(IsaLevel level) {
  if (level == Level) return nullptr;
  return level < Level ? "the instruction set is not available or capped" : "a faster level is used";
}

template <IsaLevel Level>
const char* reject_int8(const MatmulDesc& desc, IsaLevel level) {
  if (desc.compute != Compute::int8) return "computes in int8, which was not asked for";
  if (desc.in > 65536) return "more than 65536 columns may overflow the 32-bit sums";
  return at_level<Level>(level);
}

template <IsaLevel Level>
const char* reject_bf16(const MatmulDesc& desc, IsaLevel level) {
  if (desc.compute != Compute::bf16) return "rounds operands to bf16, which was not asked for";
  return at_level<Level>(level);
}

template <IsaLevel Level>
const char* reject_f32(const MatmulDesc& desc, IsaLevel level) {
  if (desc.compute == Compute::packed) return "would unpack weights that are to stay in their format";
  if (desc.compute != Compute::f32 && desc.compute != Compute::f16) return "computes in f32, which was not asked for";
  // The AMX level has no f32 tiles: AVX-512 serves both.
  return at_level<Level>(Level == IsaLevel::avx512 && level == IsaLevel::amx ? Level : level);
}

const char* reject_decode(const MatmulDesc&, IsaLevel) { return nullptr; }

constexpr MatmulKernel kKernels[] = {
    {"int8_amx", int8_of, false, reject_int8<IsaLevel::amx>},
    {"int8_avx512", int8_of, false, reject_int8<IsaLevel::avx512>},
    {"int8_avx2", int8_of, false, reject_int8<IsaLevel::avx2>},
    {"int8_scalar", int8_of, false, reject_int8<IsaLevel::scalar>},
    {"bf16_amx", bf16_of, false, reject_bf16<IsaLevel::amx>},
    {"bf16_avx512", bf16_of, false, reject_bf16<IsaLevel::avx512>},
    {"bf16_avx2", bf16_of, false, reject_bf16<IsaLevel::avx2>},
    {"bf16_scalar", bf16_of, false, reject_bf16<IsaLevel::scalar>},
    {"f32_avx512", f32_of, false, reject_f32<IsaLevel::avx512>},
    {"f32_avx2", f32_of, false, reject_f32<IsaLevel::avx2>},
    {"f32_scalar", f32_of, false, reject_f32<IsaLevel::scalar>},
    {"decode_f32", f32_of, true, reject_decode},
};

}  // namespace

MatmulChoice choose_matmul(const MatmulDesc& desc, IsaLevel level) {
  MatmulChoice choice;
  for (const MatmulKernel& kernel : kKernels) {
    const char* reason = kernel.reject(desc, level);
    if (reason == nullptr) {
      choice.kernel = &kernel;
      return choice;
    }
    choice.refusals.push_back(std::string(kernel.name) + ": " + reason);
  }
  H3_ASSERT(false);
  return choice;
}

}  // namespace h3
