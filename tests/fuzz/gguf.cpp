// Any bytes as a GGUF file: refused with an Error, or every tensor can be recognised, bound and read.
#include <cstdint>

#include "base/error.h"
#include "store/recognise.h"
#include "store/weights.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    h3::Component component;
    component.source = h3::open_gguf("fuzz", std::as_bytes(std::span(data, size)));
    h3::recognise(*component.source);
    h3::WeightBinder binder(component);
    for (const h3::TensorInfo& info : component.source->tensors()) {
      const h3::TensorInfo* found = binder.require(info.name, info.dims);
      if (found == nullptr) __builtin_trap();
      volatile float sum = 0;
      for (const float value : binder.values(found)) sum = sum + value;
    }
    binder.finish();
  } catch (const h3::Error&) {
  }
  return 0;
}
