// How a running request reports progress and learns that it should stop.
#pragma once

#include <atomic>
#include <functional>

#include "base/error.h"

namespace h3 {

// One report of where a request stands; units are what the stage counts (layers, steps, blocks, clips).
struct Progress {
  const char* stage = "";  // "load", "encode text", "encode keyframes", "denoise", "decode video", ...
  int64_t done = 0, total = 0;
};

// Passed by reference through the pipeline into the models. A model calls check() at least once per block,
// tile or layer, so that a stop lands within one of them.
class Control {
 public:
  std::function<void(const Progress&)> on_progress;  // called on the worker thread; may be empty
  std::function<void()> on_check;                    // at every place where a run can stop; for tests that slow it down

  void request_stop() { stop_.store(true, std::memory_order_relaxed); }
  bool stop_requested() const { return stop_.load(std::memory_order_relaxed); }
  void check() const {
    if (on_check) on_check();
    if (stop_requested()) throw Error(Code::cancelled, "stopped on request");
  }
  void progress(const char* stage, int64_t done, int64_t total) const {
    check();
    if (on_progress) on_progress({stage, done, total});
  }

 private:
  std::atomic<bool> stop_{false};
};

}  // namespace h3
