#include "apps/server/connection_pool.h"

namespace h3::server {

void ConnectionPool::enqueue(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  if (static_cast<int>(tasks_.size()) <= idle_ || threads_ >= limit_) {
    wake_.notify_one();
    return;
  }
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  // Without a new thread the task waits for one of the others.
  if (pthread_create(&thread, &attributes, start, this) == 0) ++threads_;
  pthread_attr_destroy(&attributes);
}

void* ConnectionPool::start(void* self) {
  static_cast<ConnectionPool*>(self)->work();
  return nullptr;
}

void ConnectionPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    const bool woken =
        wake_.wait_for(lock, std::chrono::seconds(kSpareSeconds), [this] { return stopping_ || !tasks_.empty(); });
    --idle_;
    if (tasks_.empty() && (stopping_ || !woken)) break;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    ++busy_;
    task();
    --busy_;
    lock.lock();
  }
  --threads_;
  ended_.notify_all();
}

void ConnectionPool::shutdown() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  wake_.notify_all();
  ended_.wait(lock, [this] { return threads_ == 0; });
}

}  // namespace h3::server
