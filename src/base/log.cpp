#include "base/log.h"

#include <cstdarg>
#include <cstdio>

namespace h3 {

void Log::write(LogLevel level, const char* format, ...) {
  if (!enabled(level)) return;
  char buffer[2048];
  va_list args;
  va_start(args, format);
  std::vsnprintf(buffer, sizeof buffer, format, args);
  va_end(args);
  std::lock_guard<std::mutex> lock(mutex_);
  sink_(level, buffer);
}

}  // namespace h3
