// Any bytes as a CMF file: refused with an Error, or every component can be bound and read.
#include <cstdint>

#include "base/error.h"
#include "store/cmf_source.h"
#include "tests/fuzz/read_everything.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto file = std::make_shared<const h3::CmfFile>("fuzz", std::as_bytes(std::span(data, size)));
    h3::cmf_defaults(*file);
    h3::cmf_partitions(*file);
    h3::cmf_tokenizer(*file);
    for (const h3::CmfTensor& tensor : file->tensors()) {
      if (file->payload(tensor).size() != tensor.bytes) __builtin_trap();
    }
    for (const h3::CmfPart& part : h3::cmf_parts(file)) {
      h3::Component component;
      component.source = part.source;
      component.prefix = part.prefix;
      read_everything(component);
    }
  } catch (const h3::Error&) {
  }
  return 0;
}
