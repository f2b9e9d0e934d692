// A thread that does work in turn for numbered places, each with one job at a time. What a job throws waits for whoever
// asks for its place.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace h3 {

class JobThread {
 public:
  explicit JobThread(size_t places);
  ~JobThread();  // after the jobs that were started
  JobThread(const JobThread&) = delete;
  JobThread& operator=(const JobThread&) = delete;

  // `place` has no job, or was waited for.
  void start(size_t place, std::function<void()> job);
  // Until the job of `place`, if there is one, is done; rethrows once what it threw.
  void wait(size_t place);
  // The same, without what it threw.
  void drop(size_t place) noexcept;

 private:
  struct Place {
    std::function<void()> job;
    bool busy = false;
    std::exception_ptr error;
  };
  void work();
  std::exception_ptr finished(size_t place);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Place> places_;
  std::deque<size_t> queue_;
  bool stop_ = false;
  std::thread worker_;
};

}  // namespace h3
