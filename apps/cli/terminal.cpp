#include "apps/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"

namespace h3 {
namespace {

int columns() {
  struct winsize size {};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string duration(double seconds) {
  if (seconds < 60) return strf("%.0f s", seconds);
  const int minutes = static_cast<int>(seconds / 60);
  if (minutes < 60) return strf("%d:%02d", minutes, static_cast<int>(seconds) % 60);
  return strf("%d:%02d:%02d", minutes / 60, minutes % 60, static_cast<int>(seconds) % 60);
}

const char* label(LogLevel level) {
  switch (level) {
    case LogLevel::error: return "error: ";
    case LogLevel::warn: return "warning: ";
    case LogLevel::info: return "";
    case LogLevel::debug: return "debug: ";
  }
  return "";
}

}  // namespace

LogLevel parse_log_level(const std::string& text) {
  if (text == "error") return LogLevel::error;
  if (text == "warn") return LogLevel::warn;
  if (text == "info") return LogLevel::info;
  if (text == "debug") return LogLevel::debug;
  fail(Code::usage, "--log-level: \"%s\" is not known, give error, warn, info or debug", text.c_str());
}

Terminal::Terminal(LogLevel level)
    : tty_(::isatty(STDERR_FILENO) == 1),
      log_([this](LogLevel at, const std::string& text) { message(label(at) + text); }, level) {}

void Terminal::clear() {
  if (!drawn_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

void Terminal::message(const std::string& text) {
  clear();
  std::fprintf(stderr, "%s\n", text.c_str());
}

void Terminal::progress(const Progress& progress) {
  const Clock::time_point now = Clock::now();
  if (stage_ != progress.stage) {
    stage_ = progress.stage;
    stage_start_ = now;
    last_draw_ = {};
    printed_ = -1;
  }
  const double spent = std::chrono::duration<double>(now - stage_start_).count();
  const bool done = progress.done >= progress.total;
  const double left = progress.done > 0 && !done ? spent / static_cast<double>(progress.done) *
                                                       static_cast<double>(progress.total - progress.done)
                                                 : -1;
  if (tty_) {
    // Ten pictures a second are enough; the last one of a stage is always drawn.
    if (!done && now - last_draw_ < std::chrono::milliseconds(100)) return;
    last_draw_ = now;
    draw(progress, left);
    return;
  }
  // In a log: only what takes long, a line every two seconds at most, and the end of a stage that had one.
  const bool due = now - std::max(last_draw_, stage_start_) >= std::chrono::seconds(2);
  if (done ? printed_ < 0 || printed_ == progress.done : !due) return;
  printed_ = progress.done;
  last_draw_ = now;
  const std::string eta = left >= 0 ? ", about " + duration(left) + " left" : "";
  std::fprintf(stderr, "%s %lld/%lld%s\n", progress.stage, static_cast<long long>(progress.done),
               static_cast<long long>(progress.total), eta.c_str());
}

void Terminal::draw(const Progress& progress, double left) {
  const int width = columns();
  std::string tail = strf(" %lld/%lld", static_cast<long long>(progress.done), static_cast<long long>(progress.total));
  if (left >= 0) tail += "  " + duration(left) + " left";
  std::string head = progress.stage;
  head.resize(std::max<size_t>(head.size(), 16), ' ');
  const int room = std::min(40, width - static_cast<int>(head.size() + tail.size()) - 4);
  std::string bar;
  if (room >= 4 && progress.total > 0) {
    const int64_t filled = std::clamp<int64_t>(progress.done * room / progress.total, 0, room);
    bar = "[" + std::string(static_cast<size_t>(filled), '#') + std::string(static_cast<size_t>(room - filled), '.') +
          "]";
  }
  std::string line = head + bar + tail;
  if (width > 1 && line.size() >= static_cast<size_t>(width)) line.resize(static_cast<size_t>(width) - 1);
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace h3
