// Any bytes as a file of plans: refused with an Error, or read and written back to the same contents.
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "store/plan_package.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kHeader = 40, kHash = 32;
  const auto given = std::as_bytes(std::span(data, size));
  std::vector<std::byte> bytes(given.begin(), given.end());
  if (size > kHeader) {  // else hardly an input would get past the hash
    const uint64_t hash = h3::hash64(std::span<const std::byte>(bytes).subspan(kHeader));
    for (size_t i = 0; i < 8; ++i) bytes[kHash + i] = static_cast<std::byte>(hash >> (8 * i));
  }
  try {
    const h3::PlanPackage package = h3::PlanPackage::parse(bytes, "fuzz");
    const h3::PlanPackage again = h3::PlanPackage::parse(package.bytes(), "again");
    if (again.matmuls != package.matmuls || again.parameters != package.parameters) __builtin_trap();
  } catch (const h3::Error&) {
  }
  return 0;
}
