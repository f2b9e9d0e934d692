// Which of cuBLASLt's algorithms a matmul uses: the library's first proposal, or what `h3 prepare` chose
// (ops/plan_maker.h).
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/plan_maker.h"

namespace h3::cuda {

class Algorithms {
 public:
  // A matmul as it is asked for; `kind` says all but the rows and pitches.
  struct Call {
    std::string kind;
    int64_t rows = 0, ldx = 0, ldy = 0;
    bool few_outputs = false;  // one wave of the card is not full
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  };
  // What is tried instead: for every kind of call, candidate 0 is the first proposal, the others are these.
  struct Trial {
    int candidate = 0;
    bool refused = false;  // set when the candidate cannot do a call
    std::map<std::string, std::vector<cublasLtMatmulAlgo_t>> others;
  };

  Algorithms(cublasLtHandle_t handle, int64_t workspace) : handle_(handle), workspace_(workspace) {}
  cublasLtMatmulAlgo_t choose(const Call& call, const std::string& label);
  void use(std::shared_ptr<const PlanChoices> choices) {
    choices_ = std::move(choices);
    ++generation_;
  }
  int64_t generation() const { return generation_; }  // plans of an earlier one are made again
  void try_out(Trial* trial) { trial_ = trial; }      // nullptr: no more

 private:
  std::vector<cublasLtMatmulHeuristicResult_t> proposals(const Call& call, const std::string& label, int most) const;
  bool can(const Call& call, const cublasLtMatmulAlgo_t& algorithm) const;
  cublasLtMatmulAlgo_t first(const Call& call, const std::string& label);

  cublasLtHandle_t handle_;
  int64_t workspace_;
  std::map<std::string, cublasLtMatmulAlgo_t> first_;  // layers have matmuls alike: asked for once
  std::shared_ptr<const PlanChoices> choices_;
  Trial* trial_ = nullptr;
  int64_t generation_ = 0;
};

}  // namespace h3::cuda
