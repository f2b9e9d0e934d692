// What the CPU back end would hold and choose, without weights.
#pragma once

#include "base/context.h"
#include "ops/dry.h"

namespace h3 {

DryRules cpu_dry_rules(Context& context, const std::string& forced_linear);

}  // namespace h3
