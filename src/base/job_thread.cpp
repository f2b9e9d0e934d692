#include "base/job_thread.h"

#include <utility>

#include "base/error.h"

namespace h3 {

JobThread::JobThread(size_t places) : places_(places) {
  worker_ = std::thread([this] { work(); });
}

JobThread::~JobThread() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void JobThread::start(size_t place, std::function<void()> job) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Place& at = places_[place];
    H3_ASSERT(!at.busy && !at.error);
    at.job = std::move(job);
    at.busy = true;
    queue_.push_back(place);
  }
  changed_.notify_all();
}

std::exception_ptr JobThread::finished(size_t place) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return !places_[place].busy; });
  return std::exchange(places_[place].error, nullptr);
}

void JobThread::wait(size_t place) {
  if (const std::exception_ptr error = finished(place)) std::rethrow_exception(error);
}

void JobThread::drop(size_t place) noexcept { finished(place); }

void JobThread::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Place& place = places_[queue_.front()];
    queue_.pop_front();
    const std::function<void()> job = std::exchange(place.job, nullptr);
    lock.unlock();
    std::exception_ptr error;
    try {
      job();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    place.error = error;
    place.busy = false;
    changed_.notify_all();
  }
}

}  // namespace h3
