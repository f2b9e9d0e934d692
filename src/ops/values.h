// Where operations are only counted there are no values: nobody reads what is uploaded, and zeros are downloaded. Who
// would make, move or look at many of them asks first.
#pragma once

#include "tensor/tensor.h"

namespace h3 {

// Mixed into devices of that kind.
class HoldsNoValues {
 protected:
  ~HoldsNoValues() = default;
  virtual void mark() {}
};

inline bool holds_values(const Device& device) { return dynamic_cast<const HoldsNoValues*>(&device) == nullptr; }

}  // namespace h3
