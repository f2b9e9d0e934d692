// 64-bit hashes. Not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
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

// The hash that CMF files carry (spec formats A.2). Blind to the order of whole 8-byte words. Its terms are joined by
// XOR, so that parts can be hashed in any order: parts start at multiples of 8 bytes, and all but the last have whole
// words.
inline uint64_t hash64_part(std::span<const std::byte> bytes, uint64_t offset) {
  constexpr uint64_t kSalt = 0x9e3779b97f4a7c15u;
  const std::byte* next = bytes.data();
  const size_t words = bytes.size() / 8;
  uint64_t salt = offset / 8 * kSalt, acc = 0;
  const auto load = [](const std::byte* from) {
    uint64_t value;
    std::memcpy(&value, from, 8);
    return value;  // little-endian hosts only, as every file map here
  };
  size_t word = 0;
  for (; word + 4 <= words; word += 4, next += 32) {  // independent chains of multiplications
    const uint64_t a = mix64(load(next)) ^ salt, b = mix64(load(next + 8)) ^ (salt + kSalt);
    const uint64_t c = mix64(load(next + 16)) ^ (salt + 2 * kSalt), d = mix64(load(next + 24)) ^ (salt + 3 * kSalt);
    acc ^= (a ^ b) ^ (c ^ d);
    salt += 4 * kSalt;
  }
  for (; word < words; ++word, next += 8, salt += kSalt) acc ^= mix64(load(next)) ^ salt;
  if (bytes.size() % 8 != 0) {
    uint64_t tail = 0;
    std::memcpy(&tail, next, bytes.size() % 8);
    acc ^= mix64(tail) ^ salt;
  }
  return acc;
}

// From the XOR of all parts and their total size.
inline uint64_t hash64_finish(uint64_t parts, uint64_t size) { return mix64(parts ^ size); }

inline uint64_t hash64(std::span<const std::byte> bytes) { return hash64_finish(hash64_part(bytes, 0), bytes.size()); }

}  // namespace h3
