// Single operations at the sizes of the release, each beside the register-only peak of the tile unit and oneDNN.
#pragma once

#include <functional>
#include <vector>

#include "bench/bench.h"
#include "ops/ops.h"

namespace h3 {

// Linears of the four shapes of a block in bf16, int8 and on packed weights, and attention.
void bench_ops(Ops& ops, const BenchOptions& options, const std::function<void(const Json&)>& emit);

// One whole block of the transformer, with the share of each operation.
void bench_block(Ops& ops, const BenchOptions& options, const std::function<void(const Json&)>& emit);

// A matrix of random codes in a packed format, with scales that keep a product of order one. Formats: q4tp, q2tp,
// q8_row, f8_e4m3, Q8_0, Q4_K, Q6_K, and `noise`.
StoredMatrix random_matrix(Format format, int64_t rows, int64_t cols, uint64_t seed);
// The format of the weights that a precision is measured with.
constexpr Format weights_for(Compute compute) { return compute == Compute::packed ? Format::f8_e4m3 : Format::noise; }

}  // namespace h3
