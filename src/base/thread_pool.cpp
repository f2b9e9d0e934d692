#include "base/thread_pool.h"

#include <atomic>
#include <exception>

#include "base/error.h"

namespace h3 {

struct ThreadPool::Job {
  int64_t count = 0;
  const std::function<void(int64_t, int)>* task = nullptr;
  std::atomic<int64_t> next{0};
  std::exception_ptr failure;  // guarded by mutex_
};

ThreadPool::ThreadPool(int threads) {
  if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  if (threads < 1) threads = 1;
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { worker_loop(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::parallel(int64_t count, const std::function<void(int64_t)>& task) {
  parallel_indexed(count, [&task](int64_t i, int) { task(i); });
}

void ThreadPool::parallel_indexed(int64_t count, const std::function<void(int64_t, int)>& task) {
  if (count <= 0) return;
  Job job;
  job.count = count;
  job.task = &task;
  if (count > 1 && !workers_.empty()) {
    std::lock_guard<std::mutex> lock(mutex_);
    H3_ASSERT(job_ == nullptr);
    job_ = &job;
    ++generation_;
    wake_.notify_all();
  }
  run_job(job, 0);
  if (count > 1 && !workers_.empty()) {
    std::unique_lock<std::mutex> lock(mutex_);
    job_ = nullptr;  // no worker may start on it any more
    done_.wait(lock, [this] { return active_ == 0; });
  }
  if (job.failure) std::rethrow_exception(job.failure);
}

void ThreadPool::run_job(Job& job, int worker) {
  for (;;) {
    const int64_t i = job.next.fetch_add(1, std::memory_order_relaxed);
    if (i >= job.count) return;
    try {
      (*job.task)(i, worker);
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!job.failure) job.failure = std::current_exception();
      job.next.store(job.count, std::memory_order_relaxed);
    }
  }
}

void ThreadPool::worker_loop(int worker) {
  uint64_t seen = 0;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || (job_ != nullptr && generation_ != seen); });
    if (stop_) return;
    seen = generation_;
    Job& job = *job_;
    ++active_;
    lock.unlock();
    run_job(job, worker);
    lock.lock();
    if (--active_ == 0) done_.notify_all();
  }
}

}  // namespace h3
