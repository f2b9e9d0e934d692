// One evaluation of the model under a step policy.
#pragma once

#include "model/dit/dit.h"
#include "sampling/policy.h"

namespace h3 {

// velocity receives what the sampler advances by, computed or estimated.
void run_step(DitSession& session, StepPolicy& policy, int step, const Streams& input, const Streams& velocity);

PolicyShape policy_shape(const PackedLayout& layout, const DitConfig& config, DType activation, int evaluations);

}  // namespace h3
