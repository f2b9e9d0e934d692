#include "base/compare.h"

#include <cmath>

#include "base/error.h"

namespace h3 {

Comparison compare_values(std::span<const float> got, std::span<const float> want, const Limits& limits) {
  Comparison result;
  if (got.size() != want.size()) {
    result.failure = strf("%zu elements, expected %zu", got.size(), want.size());
    return result;
  }
  if (got.empty()) {
    result.failure = "nothing to compare";
    return result;
  }
  result.count = static_cast<int64_t>(got.size());
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < result.count; ++i) {
    const double g = got[i], w = want[i];
    if (!std::isfinite(g) || !std::isfinite(w)) {
      if (result.non_finite++ == 0) result.first_non_finite = i;
      continue;
    }
    const double d = std::fabs(g - w);
    difference += d * d;
    norm += w * w;
    if (d > result.max_abs || result.worst < 0) {
      result.max_abs = d;
      result.worst = i;
    }
  }
  result.rel_l2 = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  if (result.non_finite > 0) {
    const int64_t i = result.first_non_finite;
    result.failure = strf("%lld non-finite values, first at %lld: %g, expected %g", (long long)result.non_finite,
                          (long long)i, got[i], want[i]);
  } else if (limits.rel_l2 < 0 && limits.max_abs < 0) {
    result.failure = "no limit was asked";
  } else if (limits.rel_l2 >= 0 && !(result.rel_l2 <= limits.rel_l2)) {
    result.failure = strf("relative L2 %.3g over %.3g", result.rel_l2, limits.rel_l2);
  } else if (limits.max_abs >= 0 && !(result.max_abs <= limits.max_abs)) {
    result.failure = strf("max abs %.3g over %.3g at %lld: %g, expected %g", result.max_abs, limits.max_abs,
                          (long long)result.worst, got[result.worst], want[result.worst]);
  }
  result.passed = result.failure.empty();
  return result;
}

}  // namespace h3
