// `h3 prepare`: plans that a back end finds by trying, stored in a file and taken from it by later runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/control.h"
#include "model/dit/dit.h"
#include "ops/ops.h"
#include "pipeline/plan_search.h"
#include "store/plan_package.h"

namespace h3 {

struct PrepareInput {
  Ops& ops;
  PlanMaker* maker;  // of these Ops
  const Component& dit;
  Compute compute = Compute::bf16;
  std::vector<int64_t> rows;  // of packed sequences; choices hold for the bucket of each
  SearchOptions search;
};

// Tries every candidate for the matmuls of a block, then evaluates one block with one and with two times in a sequence
// of each number of rows, with the choices and without. Error(usage) when there is nothing to choose on this device,
// Error(device) when the two differ by more than the order of sums explains.
PlanPackage prepare_plans(const PrepareInput& input, const Control& control);

// Hands the choices to the back end if they were made for this machine, libraries, program and arithmetic; else one log
// line says why not, and false is returned. Error(data) naming the tensor when they were made for another model.
bool adopt_plans(Ops& ops, PlanMaker* maker, const PlanPackage& package, const std::string& path, Compute compute,
                 const Component& dit);

}  // namespace h3
