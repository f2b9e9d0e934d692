// The only source of parallelism on the host. One pool per Context; no globals.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace h3 {

class ThreadPool {
 public:
  // threads <= 0 means one per available CPU. The calling thread is one of the workers.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(i) once for every i in [0, count), in any order and on any thread; returns when all are done.
  // Results must not depend on which thread runs which i: work is partitioned by the problem, never by the
  // thread count, so that any --threads gives the same bytes. The first exception is rethrown here.
  // Not reentrant: a task must not call parallel on the same pool.
  void parallel(int64_t count, const std::function<void(int64_t)>& task);

  // Like parallel, with the index of the worker (0 .. threads()-1) for per-thread scratch.
  void parallel_indexed(int64_t count, const std::function<void(int64_t, int)>& task);

 private:
  struct Job;
  void worker_loop(int worker);
  void run_job(Job& job, int worker);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  uint64_t generation_ = 0;
  int active_ = 0;
  bool stop_ = false;
};

}  // namespace h3
