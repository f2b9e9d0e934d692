// Threads for connections: as many as there are connections, up to a limit; idle ones end.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

#include "apps/server/connection.h"

namespace h3::server {

class ConnectionPool final : public httplib::TaskQueue {
 public:
  ConnectionPool(int limit, std::atomic<int>& busy) : limit_(limit), busy_(busy) {}
  ~ConnectionPool() override { shutdown(); }
  void enqueue(std::function<void()> task) override;
  void shutdown() override;

 private:
  static void* start(void* self);
  void work();

  // The parser matches some headers with std::regex, which recurses once per character of up to 8 KiB.
  static constexpr size_t kStackBytes = size_t{16} << 20;
  static constexpr int kSpareSeconds = 20;

  const int limit_;
  std::atomic<int>& busy_;
  std::mutex mutex_;
  std::condition_variable wake_, ended_;
  std::deque<std::function<void()>> tasks_;
  int threads_ = 0, idle_ = 0;
  bool stopping_ = false;
};

}  // namespace h3::server
