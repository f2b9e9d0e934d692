// Does a card compute what it should, before anything is rendered on it?
#pragma once

#include <memory>
#include <string>

#include "ops/ops.h"

namespace h3 {

// A few rows through the matmul of every compute type, packed weights included, and a tile of attention of every head
// width of the model, against the oracle and within the contract of each operation. "" when all agree, else what
// differed or failed. Takes some tens of milliseconds.
std::string start_check(std::unique_ptr<Ops> card);

}  // namespace h3
