#include "backends/cpu/peak.h"

#include <chrono>

#include "backends/cpu/isa/kernels.h"
#include "backends/cpu/isa_level.h"

namespace h3 {

double measure_amx_peak(ThreadPool& pool, bool integer, double seconds) {
#if defined(__x86_64__)
  if (host_isa_level() < IsaLevel::amx) return 0;
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kSteps = 20000;  // about 1 ms
  const double per_step = 6.0 * 2 * 16 * 16 * (integer ? 64 : 32);
  int64_t rounds = 0;
  const Clock::time_point start = Clock::now();
  double elapsed = 0;
  while (elapsed < seconds) {
    pool.parallel(4 * pool.threads(), [&](int64_t) { isa::amx_peak_steps(integer, kSteps); });
    rounds += 4 * pool.threads();
    elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  }
  return per_step * static_cast<double>(rounds * kSteps) / elapsed;
#else
  (void)pool, (void)integer, (void)seconds;
  return 0;
#endif
}

}  // namespace h3
