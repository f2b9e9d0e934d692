// What the user sees while a command runs: a progress bar on a terminal, plain lines elsewhere, messages between them.
// Everything goes to stderr; results go to stdout.
#pragma once

#include <chrono>
#include <string>

#include "base/control.h"
#include "base/log.h"

namespace h3 {

class Terminal {
 public:
  explicit Terminal(LogLevel level);
  ~Terminal() { clear(); }

  Log& log() { return log_; }
  void progress(const Progress& progress);
  void message(const std::string& text);  // one line, above the bar
  void clear();                           // removes the bar

 private:
  using Clock = std::chrono::steady_clock;
  void draw(const Progress& progress, double left);

  bool tty_ = false, drawn_ = false;
  std::string stage_;
  int64_t printed_ = -1;
  Clock::time_point stage_start_{}, last_draw_{};
  Log log_;
};

LogLevel parse_log_level(const std::string& text);

}  // namespace h3
