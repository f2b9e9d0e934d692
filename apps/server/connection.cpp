#include "apps/server/connection.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace h3::server {
namespace {

constexpr uint64_t kHeadBytes = 64 * 1024;  // request line and all headers

Connection::Clock::time_point after(double seconds) {
  return Connection::Clock::now() +
         std::chrono::duration_cast<Connection::Clock::duration>(std::chrono::duration<double>(seconds));
}

int milliseconds_until(Connection::Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Connection::Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000));
}

// poll() that survives signals; the events that are set, 0 on a timeout.
int wait_for(int fd, short events, Connection::Clock::time_point deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, milliseconds_until(deadline));
    if (ready > 0) return entry.revents;
    if (ready == 0 || errno != EINTR) return 0;
  }
}

void set_option(int fd, int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof value); }

}  // namespace

Connection::Connection(int fd, const HttpLimits& limits) : fd_(fd), limits_(limits) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A client whose network vanished is noticed within half a minute, also by a stream that waits for a job.
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 25'000);
}

Connection::~Connection() { ::close(fd_); }

int Connection::wait_readable(double slice_seconds) {
  if (at_ < end_) return 1;
  const int events = wait_for(fd_, POLLIN, after(slice_seconds));
  if (events == 0) return 0;
  char byte = 0;
  const ssize_t peeked = ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return peeked > 0 ? 1 : peeked < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

void Connection::begin_head() {
  deadline_ = after(limits_.header_seconds);
  budget_ = kHeadBytes;
}

void Connection::begin_body(uint64_t bytes) {
  deadline_ = after(limits_.body_seconds + static_cast<double>(bytes) / limits_.slowest_rate);
  budget_ = UINT64_MAX;
}

void Connection::linger() {
  ::shutdown(fd_, SHUT_WR);
  const Clock::time_point until = after(1);
  for (uint64_t drained = 0; drained < (uint64_t{256} << 20);) {
    if (wait_for(fd_, POLLIN, until) == 0) return;
    const ssize_t got = ::recv(fd_, buffer_, sizeof buffer_, 0);
    if (got <= 0) return;
    drained += static_cast<uint64_t>(got);
  }
}

bool Connection::gone() const {
  pollfd entry{fd_, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool Connection::is_writable() const {
  return (wait_for(fd_, POLLOUT, after(limits_.write_seconds)) & POLLOUT) != 0 && !gone();
}

ssize_t Connection::receive(char* to, size_t bytes) {
  if (budget_ == 0) return -1;
  bytes = static_cast<size_t>(std::min<uint64_t>(bytes, budget_));
  for (;;) {
    if (Clock::now() >= deadline_ || wait_for(fd_, POLLIN, deadline_) == 0) return -1;
    const ssize_t got = ::recv(fd_, to, bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got > 0) budget_ -= static_cast<uint64_t>(got);
    return got;
  }
}

ssize_t Connection::read(char* to, size_t bytes) {
  if (at_ == end_) {
    if (bytes >= sizeof buffer_) return receive(to, bytes);
    const ssize_t got = receive(buffer_, sizeof buffer_);
    if (got <= 0) return got;
    at_ = 0;
    end_ = static_cast<size_t>(got);
  }
  const size_t count = std::min(bytes, end_ - at_);
  std::memcpy(to, buffer_ + at_, count);
  at_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t Connection::write(const char* from, size_t bytes) {
  for (;;) {
    if ((wait_for(fd_, POLLOUT, after(limits_.write_seconds)) & POLLOUT) == 0) return -1;
    const ssize_t sent = ::send(fd_, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    return sent;
  }
}

namespace {

void address_of(const sockaddr_storage& address, socklen_t size, std::string& ip, int& port) {
  char host[NI_MAXHOST] = "", service[NI_MAXSERV] = "";
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, service, sizeof service,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return;
  }
  ip = host;
  port = std::atoi(service);
}

}  // namespace

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0) address_of(address, size, ip, port);
}

void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0) address_of(address, size, ip, port);
}

}  // namespace h3::server
