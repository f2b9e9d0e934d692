// What every reader of weights must stand: each tensor of a component bound under its name and dims, and read.
#pragma once

#include "store/weights.h"

inline void read_everything(const h3::Component& component) {
  h3::WeightBinder binder(component);
  for (const h3::TensorInfo& info : component.source->tensors()) {
    const h3::TensorInfo* found = binder.require(info.name.substr(component.prefix.size()), info.dims);
    if (found == nullptr) __builtin_trap();
    volatile float sum = 0;
    for (const float value : binder.values(found)) sum = sum + value;
  }
  binder.finish();
}
