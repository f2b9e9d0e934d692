// The policies, one function each; sampling/policy.cpp holds the table.
#pragma once

#include "sampling/policy.h"

namespace h3 {

extern const PolicyParameter kFirstBlockParameters[5];
extern const PolicyParameter kForecastParameters[4];
extern const PolicyParameter kTeaCacheParameters[3];
extern const PolicyParameter kExtrapolateParameters[1];

std::unique_ptr<StepPolicy> make_none(Ops& ops, const PolicySpec& spec, const PolicyShape& shape,
                                      const Schedule& schedule);
std::unique_ptr<StepPolicy> make_first_block(Ops& ops, const PolicySpec& spec, const PolicyShape& shape,
                                             const Schedule& schedule);
std::unique_ptr<StepPolicy> make_forecast(Ops& ops, const PolicySpec& spec, const PolicyShape& shape,
                                          const Schedule& schedule);
std::unique_ptr<StepPolicy> make_teacache(Ops& ops, const PolicySpec& spec, const PolicyShape& shape,
                                          const Schedule& schedule);
std::unique_ptr<StepPolicy> make_extrapolate(Ops& ops, const PolicySpec& spec, const PolicyShape& shape,
                                             const Schedule& schedule);

// sum |round(a - b)| / max(sum |b|, 1e-8), read back from the device.
class L1Ratio {
 public:
  explicit L1Ratio(Ops& ops);
  double operator()(const View& a, const View& b);

 private:
  Ops& ops_;
  Tensor sums_;
};

// Pairs of f32 coefficients on the device, one row each.
class CoefficientTable {
 public:
  CoefficientTable(Device& device, const std::vector<float>& pairs);
  View at(int64_t row) const { return table_.view.select(0, row); }

 private:
  Tensor table_;
};

}  // namespace h3
