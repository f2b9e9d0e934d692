// Any bytes: parsed or refused with an Error; what is parsed must survive writing and reading back.
#include "base/json.h"

#include <cstdlib>

#include "base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const h3::Json json = h3::Json::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
    const std::string text = json.dump();
    if (h3::Json::parse(text, "again").dump() != text) __builtin_trap();
    if (h3::Json::parse(json.dump(1), "indented").dump() != text) __builtin_trap();
  } catch (const h3::Error&) {
  }
  return 0;
}
