// XXH3-128, which sees what hash64 of CMF files does not: words that changed places.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace h3 {

class StrongHash {
 public:
  static bool available();  // the build has xxHash
  StrongHash();
  ~StrongHash();
  StrongHash(StrongHash&&) noexcept;
  StrongHash& operator=(StrongHash&&) noexcept;

  void update(std::span<const std::byte> bytes);
  std::string hex() const;  // 32 lower-case digits, high half first; empty when not available

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace h3
