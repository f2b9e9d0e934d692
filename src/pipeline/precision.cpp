#include "pipeline/precision.h"

#include <vector>

#include "pipeline/checks.h"

namespace h3 {

const char* precision_name(Compute compute) { return compute == Compute::packed ? "fp8" : name_of(compute); }

Compute parse_precision(const char* field, const std::string& name, std::initializer_list<Compute> allowed,
                        bool nvfp4) {
  std::vector<std::string> names;
  for (const Compute compute : allowed) names.emplace_back(precision_name(compute));
  if (nvfp4) names.emplace_back("nvfp4");
  if (one_of(field, name, names) == "nvfp4") return Compute::packed;
  const Compute* found = allowed.begin();
  while (name != precision_name(*found)) ++found;
  return *found;
}

}  // namespace h3
