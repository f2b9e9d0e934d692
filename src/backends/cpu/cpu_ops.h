// The CPU back end: threads over the context's pool, kernels of one instruction set level.
#pragma once

#include <memory>
#include <string>

#include "backends/cpu/isa_level.h"
#include "ops/ops.h"

namespace h3 {

struct Context;

// At the level H3_ISA allows, or at a given one (no higher than the host's).
std::unique_ptr<Ops> make_cpu_ops(Context& context);
std::unique_ptr<Ops> make_cpu_ops(Context& context, IsaLevel level);

// "amx (host: amx)": the level used and the level the host has.
std::string cpu_isa_detail();

}  // namespace h3
