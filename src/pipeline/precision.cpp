#include "pipeline/precision.h"

#include <vector>

#include "pipeline/checks.h"

namespace h3 {

const char* precision_name(Compute compute) { return compute == Compute::packed ? "fp8" : name_of(compute); }

Compute parse_precision(const char* field, const std::string& name, std::initializer_list<Compute> allowed) {
  std::vector<std::string> names;
  for (const Compute compute : allowed) names.emplace_back(precision_name(compute));
  one_of(field, name, names);
  const Compute* found = allowed.begin();
  while (name != precision_name(*found)) ++found;
  return *found;
}

}  // namespace h3
