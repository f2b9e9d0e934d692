// Attention of a release block, kernel against kernel.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/log.h"

namespace h3 {

struct AttentionBench {
  std::vector<int64_t> rows = {1874, 19300, 37726};  // of the packed sequence
  int repeats = 7;
};

// One JSON object per number of rows and kernel: the library's, the own exact one, eight bits with its pass for the
// codes; medians of turns in which each runs until the clock has settled, and the relative L2 distance from f32 over
// some queries, on normal random heads and on heads with an outlying channel and a common offset of the keys.
void run_attention_bench(const std::string& device, int threads, Log& log, const AttentionBench& options,
                         const std::function<void(const Json&)>& emit);

}  // namespace h3
