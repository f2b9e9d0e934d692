// The yardstick of the matrix kernels: what the tile unit does when it touches no memory.
#pragma once

#include "base/thread_pool.h"

namespace h3 {

// Operations per second (a multiply and an add count 2) over all threads of the pool, measured for about `seconds`.
// 0 when the host has no AMX.
double measure_amx_peak(ThreadPool& pool, bool integer, double seconds);

}  // namespace h3
