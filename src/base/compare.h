// The comparer every check goes through. It must be able to fail: NaN, Inf, a wrong sign, a wrong shape and an empty
// input are failures, never passes (style C3).
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace h3 {

// What is asked of a comparison; a negative limit is not asked. At least one must be asked.
struct Limits {
  double rel_l2 = -1;   // |got - want| / |want|; when want is all zero, |got| itself
  double max_abs = -1;
};

struct Comparison {
  int64_t count = 0;          // elements compared
  double rel_l2 = 0;
  double max_abs = 0;
  int64_t worst = -1;         // index of max_abs
  int64_t non_finite = 0;     // NaN or Inf in got or want
  int64_t first_non_finite = -1;
  bool passed = false;
  std::string failure;        // why it failed, in words; empty when passed
};

// `got_count` and `want_count` differing, or both zero, fails.
Comparison compare_values(std::span<const float> got, std::span<const float> want, const Limits& limits);

}  // namespace h3
