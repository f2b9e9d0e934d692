// The yardstick of the matrix kernels: what the multipliers do when they touch no memory.
#pragma once

#include "base/thread_pool.h"

namespace h3 {

// Operations per second (a multiply and an add count 2) over all threads of the pool, measured for about `seconds`.
// Of the level that is used (H3_ISA caps it); 0 at the portable one.
double measure_peak(ThreadPool& pool, bool integer, double seconds);

}  // namespace h3
