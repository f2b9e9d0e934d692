// One client connection as cpp-httplib's parser wants to see it, with a deadline and a byte budget for every phase.
#pragma once

#include <httplib.h>

#include <chrono>

#include "apps/server/http_server.h"

namespace h3::server {

class Connection final : public httplib::Stream {
 public:
  using Clock = std::chrono::steady_clock;

  Connection(int fd, const HttpLimits& limits);  // owns fd

  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Waits up to `slice_seconds` for the first byte of a request. Returns 1 when there is one, 0 when there is none yet,
  // -1 when the client has gone.
  int wait_readable(double slice_seconds);
  void begin_head();
  void begin_body(uint64_t bytes);
  // Lets a client that is still sending read the answer: without this the kernel drops it with a reset.
  void linger();
  bool gone() const;  // the client closed its end, or the network lost it

  bool is_readable() const override { return true; }
  bool is_writable() const override;
  ssize_t read(char* to, size_t bytes) override;
  ssize_t write(const char* from, size_t bytes) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return fd_; }

 private:
  ssize_t receive(char* to, size_t bytes);  // waits until the deadline

  int fd_;
  const HttpLimits& limits_;
  Clock::time_point deadline_;
  uint64_t budget_ = 0;  // bytes that may still be read in this phase
  char buffer_[8192];
  size_t at_ = 0, end_ = 0;
};

}  // namespace h3::server
