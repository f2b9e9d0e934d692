// What every part of the engine shares. Built in main and passed by reference; there are no globals.
#pragma once

#include "base/log.h"
#include "base/thread_pool.h"

namespace h3 {

struct Context {
  ThreadPool& pool;
  Log& log;
};

}  // namespace h3
