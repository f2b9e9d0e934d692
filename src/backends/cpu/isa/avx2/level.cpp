// The AVX2 + FMA + F16C level.
#include "backends/cpu/isa/expand_inl.h"
#include "backends/cpu/isa/gemm_inl.h"
#include "backends/cpu/isa/rows_inl.h"

namespace h3::isa {
namespace {

constexpr Gemm kF32 = gemm_f32<6, 2>("f32_avx2");
constexpr Gemm kBf16 = gemm_bf16_widened<6, 2>("bf16_avx2");
constexpr Gemm kInt8 = gemm_int8_pairs<6, 2>("int8_avx2");

}  // namespace

const Level kAvx2 = {.name = "avx2",
                     .pointwise = &kPointwise,
                     .softmax = softmax,
                     .store = store,
                     .absmax = absmax,
                     .expander = expander,
                     .f32 = &kF32,
                     .bf16 = &kBf16,
                     .int8 = &kInt8,
                     .peak = &kPeakAvx2};

}  // namespace h3::isa
