// Lines of JSON between the server and its worker process.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "base/json.h"

namespace h3::server {

class Channel {
 public:
  explicit Channel(int fd) : fd_(fd) {}  // owns fd
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  bool send(const Json& message);  // false: the other side is gone
  // The next message, or none when the time is over or `wake_fd` is readable. closed() tells whether there will be
  // more.
  std::optional<Json> receive(double seconds, int wake_fd = -1);
  bool closed() const { return closed_; }

 private:
  std::optional<Json> take();

  int fd_;
  std::mutex write_;
  std::string buffer_;
  size_t scanned_ = 0;  // bytes of the buffer that hold no line end
  bool closed_ = false;
};

}  // namespace h3::server
