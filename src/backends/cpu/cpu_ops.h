// The CPU back end: threads over the context's pool, kernels of one instruction set level.
#pragma once

#include <memory>
#include <string>

#include "backends/cpu/isa_level.h"
#include "ops/ops.h"

namespace h3 {

struct Context;

// At the level H3_ISA allows, or at a given one (no higher than the host's). forced_linear: the kernel of every matmul
// that it can run (matmul.h); Error(usage) when there is none of that name.
std::unique_ptr<Ops> make_cpu_ops(Context& context, const std::string& forced_linear = "");
std::unique_ptr<Ops> make_cpu_ops(Context& context, IsaLevel level, const std::string& forced_linear = "");

// "amx (host: amx)": the level used and the level the host has.
std::string cpu_isa_detail();

}  // namespace h3
