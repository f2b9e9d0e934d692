// Leveled log lines. The library never writes to a stream itself: the application installs a sink.
#pragma once

#include <functional>
#include <mutex>
#include <string>

namespace h3 {

enum class LogLevel { error, warn, info, debug };

class Log {
 public:
  using Sink = std::function<void(LogLevel, const std::string&)>;
  explicit Log(Sink sink = {}, LogLevel level = LogLevel::warn) : sink_(std::move(sink)), level_(level) {}

  bool enabled(LogLevel level) const { return sink_ && level <= level_; }
  void write(LogLevel level, const char* format, ...) __attribute__((format(printf, 3, 4)));

 private:
  Sink sink_;
  LogLevel level_;
  std::mutex mutex_;
};

}  // namespace h3
