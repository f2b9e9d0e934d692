// Any bytes as a GGUF file: refused with an Error, or every tensor can be recognised, bound and read.
#include <cstdint>

#include "base/error.h"
#include "store/recognise.h"
#include "tests/fuzz/read_everything.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    h3::Component component;
    component.source = h3::open_gguf("fuzz", std::as_bytes(std::span(data, size)));
    h3::recognise(*component.source);
    read_everything(component);
  } catch (const h3::Error&) {
  }
  return 0;
}
