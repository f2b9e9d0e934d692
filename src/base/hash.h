// 64-bit hashes. Not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace h3 {

inline constexpr uint64_t kFnvStart = 0xcbf29ce484222325u;

// For model ids, not for whole checkpoints. FNV-1a, 64 bits: h = (h xor byte) * 2^40+2^8+0xb3 for each byte. Chain
// calls through `start`.
inline uint64_t fnv1a64(std::span<const std::byte> bytes, uint64_t start = kFnvStart) {
  uint64_t hash = start;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3u;
  return hash;
}

// The finaliser of MurmurHash3.
inline uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

// The hash that CMF files carry (spec formats A.2). Blind to the order of whole 8-byte words.
inline uint64_t hash64(std::span<const std::byte> bytes) {
  uint64_t acc = 0;
  for (size_t word = 0; 8 * word < bytes.size(); ++word) {
    uint64_t value = 0;
    const size_t count = bytes.size() - 8 * word < 8 ? bytes.size() - 8 * word : 8;
    for (size_t i = 0; i < count; ++i) value |= static_cast<uint64_t>(bytes[8 * word + i]) << (8 * i);
    acc ^= mix64(value) ^ (word * 0x9e3779b97f4a7c15u);
  }
  return mix64(acc ^ bytes.size());
}

}  // namespace h3
