// Which instruction sets the host has and which one is used.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backends/cpu/isa/kernels.h"

namespace h3 {

enum class IsaLevel : uint8_t { scalar, avx2, avx512, amx };

const char* name_of(IsaLevel level);
// "scalar", "avx2", "avx512" or "amx"; Error(usage) otherwise.
IsaLevel parse_isa_level(std::string_view text);

// The highest level that the processor has, the kernel saves the state of and, for AMX, grants to this process.
IsaLevel host_isa_level();
// host_isa_level() capped by H3_ISA.
IsaLevel chosen_isa_level();

// The kernels of a level. `level` must not exceed host_isa_level().
isa::Level kernels_of(IsaLevel level);

}  // namespace h3
