#include "backends/cpu/peak.h"

#include <chrono>

#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa_level.h"

namespace h3 {

double measure_peak(ThreadPool& pool, bool integer, double seconds) {
  const isa::Level kernels = kernels_of(chosen_isa_level());
  if (kernels.peak == nullptr) return 0;
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kSteps = 20000;  // below 1 ms
  int64_t rounds = 0;
  const Clock::time_point start = Clock::now();
  double elapsed = 0;
  while (elapsed < seconds) {
    pool.parallel(4 * pool.threads(), [&](int64_t) { kernels.peak->run(integer, kSteps); });
    rounds += 4 * pool.threads();
    elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  }
  const double per_step = integer ? kernels.peak->int8_step : kernels.peak->float_step;
  return per_step * static_cast<double>(rounds * kSteps) / elapsed;
}

}  // namespace h3
