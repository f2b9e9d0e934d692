// An adapter of any size made by chance, without a file: to measure what adapters cost.
#pragma once

#include <cstdint>
#include <memory>

#include "model/dit/config.h"
#include "store/tensor_source.h"

namespace h3 {

// LightX2V's layout (spec formats E.1): a pair and an alpha for each of the four matrices of every block, 3 * rank on
// the fused QKV and rank elsewhere, alpha = rank.
std::shared_ptr<TensorSource> synthetic_adapter(const DitConfig& config, int64_t rank, uint64_t seed);

}  // namespace h3
