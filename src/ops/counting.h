// A back end that computes nothing and only counts the memory that the calls of a model take: plans are made by running
// the model's own code on it, so they cannot drift from what a run does.
#pragma once

#include <memory>

#include "ops/ops.h"

namespace h3 {

class CountingOps : public Ops {
 public:
  virtual int64_t host_bytes() const = 0;  // of copies of travelling weights that are not as in the file
};

// Weights take what `real` says they would (Ops::linear_bytes), operands what the model asks for; scratch of kernels is
// not counted (Ops::scratch_bytes). The device is no host and its addresses point nowhere: downloads give zeros.
std::unique_ptr<CountingOps> make_counting(Ops& real);

}  // namespace h3
