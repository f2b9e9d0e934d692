#include "bench/timing.h"

#include <algorithm>
#include <chrono>

namespace h3 {

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

std::vector<std::vector<double>> time_in_turns(const std::vector<std::function<void()>>& alternatives, int rounds) {
  std::vector<std::vector<double>> seconds(alternatives.size());
  for (const std::function<void()>& run : alternatives) run();
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < alternatives.size(); ++i) {
      const double start = clock_seconds();
      alternatives[i]();
      seconds[i].push_back(clock_seconds() - start);
    }
  }
  return seconds;
}

}  // namespace h3
