// How `h3 prepare` chooses among a back end's candidates for a matmul.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/json.h"
#include "ops/plan_maker.h"

namespace h3 {

// The rows of a choice: above, up to and including. Bounds are powers of the square root of 2.
struct RowBucket {
  int64_t above = 0, upto = 0;
};
RowBucket bucket_of(int64_t rows);  // rows > 0

struct SearchOptions {
  int calls = 3;       // of each candidate in a round; their median counts
  double gain = 0.03;  // of the time of candidate 0, in each of two rounds at both ends of the bucket
};

struct SearchResult {
  std::vector<PlanChoice> choices;  // none: candidate 0 stays
  int candidate = 0;
  Json report;  // one object: rows, candidates, those whose values are wrong, seconds
};

// Candidates are timed in turns, in two separate rounds, at the first and the last number of rows of a bucket. One is
// taken if its values are those of candidate 0 (up to the order of their sums) and it is faster by `gain` each time:
// what is not clearly faster is lost again in a whole evaluation (docs/measurements/002).
using MakeTrial = std::function<std::unique_ptr<MatmulTrial>(int64_t rows, MatmulTrial* like)>;
SearchResult search_matmul(const RowBucket& bucket, const SearchOptions& options, const MakeTrial& trial);

}  // namespace h3
