// What the ways of doing less buy: live adapters, reused evaluations and sparse attention, each beside the same work
// without it, in turns within one run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/log.h"

namespace h3 {

struct TurboBench {
  std::vector<int64_t> rows = {1874, 37726};  // of the packed sequence
  int64_t layers = 50;                        // of the transformer whose evaluations are reused
  int repeats = 5;
};

// One JSON object per measurement:
//   a block with bf16, q4tp and fp8 weights, without and with the branches of a LightX2V adapter (rank 128);
//   attention of a block at the largest number of rows, dense and sparse with a forced mask of 19.65 % exact blocks;
//   27 evaluations, all run, against 20 run and 7 reused as a forced trace of the first-block cache says;
//   what a request waits for when it brings another adapter than the one before.
// Error(data) when the sparse kernel with every block exact is not the dense one, or an adapter leaves a trace in what
// comes after it.
void run_turbo_bench(const std::string& device, int threads, Log& log, const TurboBench& options,
                     const std::function<void(const Json&)>& emit);

}  // namespace h3
