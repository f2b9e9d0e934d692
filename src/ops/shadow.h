// Runs every call on two back ends and stops at the first result the contract does not allow (style D6, rung 4).
#pragma once

#include <memory>

#include "ops/ops.h"

namespace h3 {

// `fast` does the work: memory is its device's, and its results go on. `oracle`, a host back end, repeats each call on
// copies of the arguments as they were, so errors do not add up. A result beyond the contract (ops/contract.h), or a
// byte changed between the rows of an output, throws Error(numeric) naming op, call number, label, element and values.
// Weights are held three more times (oracle and magnitudes, f32): for toys and small runs.
std::unique_ptr<Ops> make_shadow(std::unique_ptr<Ops> fast, std::unique_ptr<Ops> oracle);

}  // namespace h3
