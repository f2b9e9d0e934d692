#include "apps/server/channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

namespace h3::server {

Channel::~Channel() { ::close(fd_); }

bool Channel::send(const Json& message) {
  const std::string text = message.dump() + "\n";
  const std::lock_guard lock(write_);
  for (size_t at = 0; at < text.size();) {
    const ssize_t sent = ::send(fd_, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    at += static_cast<size_t>(sent);
  }
  return true;
}

std::optional<Json> Channel::take() {
  const size_t end = buffer_.find('\n', scanned_);
  if (end == std::string::npos) {
    scanned_ = buffer_.size();
    return std::nullopt;
  }
  Json message = Json::parse(std::string_view(buffer_).substr(0, end), "message");
  buffer_.erase(0, end + 1);
  scanned_ = 0;
  return message;
}

std::optional<Json> Channel::receive(double seconds, int wake_fd) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    if (std::optional<Json> message = take()) return message;
    if (closed_) return std::nullopt;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() < 0) return std::nullopt;
    pollfd entries[2] = {{fd_, POLLIN, 0}, {wake_fd, POLLIN, 0}};
    const int ready = ::poll(entries, wake_fd >= 0 ? 2 : 1, static_cast<int>(left.count()) + 1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0 || entries[0].revents == 0) return std::nullopt;
    char piece[65536];
    const ssize_t got = ::recv(fd_, piece, sizeof piece, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      closed_ = true;
    } else {
      buffer_.append(piece, static_cast<size_t>(got));
    }
  }
}

}  // namespace h3::server
