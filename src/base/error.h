// Errors (style C10). Three classes:
//   programmer error            -> H3_ASSERT: aborts, unreachable from user input or files;
//   what ends a request         -> throw Error, caught only in the CLI main, the server worker and the test runner;
//   an expected outcome         -> a return value.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace h3 {

enum class Code {
  usage,      // the request is malformed: exit code 2, HTTP 400
  data,       // a file is not what it should be: exit code 1
  io,         // reading or writing failed: exit code 1
  memory,     // does not fit, or an allocation failed: exit code 1
  device,     // the accelerator failed: exit code 1
  numeric,    // NaN or Inf appeared: exit code 1
  cancelled,  // the caller asked to stop: exit code 130
};

class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& text) : std::runtime_error(text), code_(code) {}
  Code code() const { return code_; }
  // The same error with context in front: "loading vae: ...".
  Error with_context(std::string_view context) const;

 private:
  Code code_;
};

// printf-style formatting into a string, checked by the compiler.
std::string strf(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Throws Error(code, strf(format, ...)). Text: what failed, the value, what is allowed, one suggestion.
[[noreturn]] void fail(Code code, const char* format, ...) __attribute__((format(printf, 2, 3)));

[[noreturn]] void assert_failed(const char* expression, const char* file, int line);

}  // namespace h3

// For programmer errors only; always on, so keep it out of inner loops.
#define H3_ASSERT(expression) \
  ((expression) ? static_cast<void>(0) : ::h3::assert_failed(#expression, __FILE__, __LINE__))
