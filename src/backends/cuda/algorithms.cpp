#include "backends/cuda/algorithms.h"

#include <algorithm>
#include <cstring>

#include "backends/cuda/check.h"
#include "backends/cuda/libraries.h"
#include "base/error.h"

namespace h3::cuda {
namespace {

constexpr int kTried = 8;

}  // namespace

cublasLtMatmulAlgo_t Algorithms::choose(const Call& call, const std::string& label) {
  if (trial_ != nullptr) {
    const auto [found, fresh] = trial_->others.try_emplace(call.kind);
    if (fresh) {
      const std::vector<cublasLtMatmulHeuristicResult_t> all = proposals(call, label, kTried);
      for (size_t i = 1; i < all.size(); ++i) found->second.push_back(all[i].algo);
    }
    if (trial_->candidate == 0) return first(call, label);
    const auto index = static_cast<size_t>(trial_->candidate - 1);
    if (index < found->second.size() && can(call, found->second[index])) return found->second[index];
    trial_->refused = true;
    return first(call, label);
  }
  if (choices_ != nullptr) {
    for (const PlanChoice& choice : choices_->matmuls) {
      cublasLtMatmulAlgo_t algorithm;
      if (choice.call != call.kind || call.rows <= choice.above || call.rows > choice.upto) continue;
      if (choice.data.size() != sizeof algorithm) continue;
      std::memcpy(&algorithm, choice.data.data(), sizeof algorithm);
      if (can(call, algorithm)) return algorithm;
    }
  }
  return first(call, label);
}

// The library's first proposal: measured choices gain nothing that lasts unless they are clear
// (docs/measurements/002-cuda-decode-and-plans.md). For few outputs, where one wave of the card is not full, the first
// may be far from the fastest; of four, the one that fills most of the wave is (018-fp8-and-branches.md).
cublasLtMatmulAlgo_t Algorithms::first(const Call& call, const std::string& label) {
  const std::string key = strf("%s %lld %lld %lld", call.kind.c_str(), static_cast<long long>(call.rows),
                               static_cast<long long>(call.ldx), static_cast<long long>(call.ldy));
  const auto found = first_.find(key);
  if (found != first_.end()) return found->second;
  const std::vector<cublasLtMatmulHeuristicResult_t> all = proposals(call, label, call.few_outputs ? 4 : 1);
  const cublasLtMatmulHeuristicResult_t* best = &all.front();
  for (const cublasLtMatmulHeuristicResult_t& other : all) {
    if (best->wavesCount < other.wavesCount && other.wavesCount <= 1) best = &other;
  }
  return first_.emplace(key, best->algo).first->second;
}

std::vector<cublasLtMatmulHeuristicResult_t> Algorithms::proposals(const Call& call, const std::string& label,
                                                                   int most) const {
  const BlasLt& blas = blas_lt();
  cublasLtMatmulPreference_t preference = nullptr;
  check(blas.cublasLtMatmulPreferenceCreate(&preference), "a matmul preference");
  const auto limit = static_cast<size_t>(workspace_);
  cublasStatus_t status = blas.cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int count = 0;
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = blas.cublasLtMatmulAlgoGetHeuristic(handle_, call.operation, call.a, call.b, call.d, call.d, preference,
                                                 most, results.data(), &count);
  }
  blas.cublasLtMatmulPreferenceDestroy(preference);
  results.resize(static_cast<size_t>(status == CUBLAS_STATUS_SUCCESS ? count : 0));
  if (status == CUBLAS_STATUS_SUCCESS && count == 0) status = CUBLAS_STATUS_NOT_SUPPORTED;
  check(status,
        strf("choosing an algorithm for %s with %lld rows", label.c_str(), static_cast<long long>(call.rows)).c_str());
  std::erase_if(results, [](const cublasLtMatmulHeuristicResult_t& r) { return r.state != CUBLAS_STATUS_SUCCESS; });
  check(results.empty() ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS, label.c_str());
  return results;
}

bool Algorithms::can(const Call& call, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      blas_lt().cublasLtMatmulAlgoCheck(handle_, call.operation, call.a, call.b, call.d, call.d, &algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS && static_cast<int64_t>(result.workspaceSize) <= workspace_;
}

}  // namespace h3::cuda
