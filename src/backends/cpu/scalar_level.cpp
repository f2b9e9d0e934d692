// The portable level: the shared kernels at the baseline instruction set of the compiler.
#include "backends/cpu/isa/expand_inl.h"
#include "backends/cpu/isa/gemm_inl.h"
#include "backends/cpu/isa/rows_inl.h"

namespace h3::isa {
namespace {

constexpr Gemm kF32 = gemm_f32<4, 2>("f32_scalar");
constexpr Gemm kBf16 = gemm_bf16_widened<4, 2>("bf16_scalar");
constexpr Gemm kInt8 = gemm_int8_pairs<4, 2>("int8_scalar");

}  // namespace

const Level kScalar = {.name = "scalar",
                       .pointwise = &kPointwise,
                       .softmax = softmax,
                       .store = store,
                       .absmax = absmax,
                       .expander = expander,
                       .f32 = &kF32,
                       .bf16 = &kBf16,
                       .int8 = &kInt8};

}  // namespace h3::isa
