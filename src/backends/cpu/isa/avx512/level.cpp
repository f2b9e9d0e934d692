// The AVX-512 level (F, BW, VL, DQ, VNNI, BF16).
#include "backends/cpu/isa/avx512/gemm.h"
#include "backends/cpu/isa/expand_inl.h"
#include "backends/cpu/isa/gemm_inl.h"
#include "backends/cpu/isa/rows_inl.h"

namespace h3::isa {
namespace {

constexpr Gemm kF32 = gemm_f32<12, 2>("f32_avx512");

}  // namespace

const Level kAvx512 = {.name = "avx512",
                       .pointwise = &kPointwise,
                       .softmax = softmax,
                       .store = store,
                       .absmax = absmax,
                       .expander = expander,
                       .f32 = &kF32,
                       .bf16 = &kBf16Avx512,
                       .int8 = &kInt8Avx512,
                       .peak = &kPeakAvx512};

}  // namespace h3::isa
