// A 64-bit hash for model ids. Not cryptographic and not for whole checkpoints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace h3 {

inline constexpr uint64_t kFnvStart = 0xcbf29ce484222325u;

// FNV-1a, 64 bits: h = (h xor byte) * 2^40+2^8+0xb3 for each byte. Chain calls through `start`.
inline uint64_t fnv1a64(std::span<const std::byte> bytes, uint64_t start = kFnvStart) {
  uint64_t hash = start;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3u;
  return hash;
}

}  // namespace h3
