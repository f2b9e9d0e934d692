#include "base/error.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace h3 {
namespace {

std::string vformat(const char* format, va_list args) {
  va_list again;
  va_copy(again, args);
  const int length = std::vsnprintf(nullptr, 0, format, args);
  std::string text(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  if (length > 0) std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

}  // namespace

Error Error::with_context(std::string_view context) const {
  return Error(code_, std::string(context) + ": " + what());
}

std::string strf(const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::string text = vformat(format, args);
  va_end(args);
  return text;
}

void fail(Code code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::string text = vformat(format, args);
  va_end(args);
  throw Error(code, text);
}

void assert_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "h3: internal error: %s (%s:%d)\n", expression, file, line);
  std::abort();
}

}  // namespace h3
