// A strict subset of TOML: `key = value` lines, comments, arrays on one or several lines. No tables, no dates, no
// multi-line strings; anything else is an error with its line, never ignored.
#include <cctype>
#include <string>

#include "apps/cli/flags.h"
#include "base/error.h"
#include "base/utf8.h"

namespace h3 {
namespace {

class ConfigParser {
 public:
  ConfigParser(const std::string& text, const std::string& what) : text_(text), what_(what) {}

  std::vector<ConfigEntry> run() {
    std::vector<ConfigEntry> entries;
    for (;;) {
      skip_blank(true);
      if (at_end()) return entries;
      ConfigEntry entry;
      entry.line = line_;
      entry.key = key();
      for (const ConfigEntry& other : entries) {
        if (other.key == entry.key) error("key " + entry.key + " appears twice");
      }
      skip_blank(false);
      if (peek() != '=') error("expected = after " + entry.key);
      ++at_;
      skip_blank(false);
      if (peek() == '[') {
        entry.values = array();
      } else {
        entry.values.push_back(value());
      }
      skip_blank(false);
      if (!at_end() && peek() != '\n') error("expected the end of the line after the value of " + entry.key);
      entries.push_back(std::move(entry));
    }
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }

  [[noreturn]] void error(const std::string& problem) const {
    fail(Code::usage, "%s:%d: %s", what_.c_str(), line_, problem.c_str());
  }

  // Blanks, comments and, where allowed, line ends.
  void skip_blank(bool lines) {
    for (; !at_end(); ++at_) {
      const char c = text_[at_];
      if (c == '#') {
        while (!at_end() && text_[at_] != '\n') ++at_;
        if (at_end()) return;
      }
      if (text_[at_] == '\n') {
        if (!lines) return;
        ++line_;
      } else if (c != '#' && c != ' ' && c != '\t' && c != '\r') {
        return;
      }
    }
  }

  std::string key() {
    const size_t start = at_;
    while (std::isalnum(static_cast<unsigned char>(peek())) || peek() == '-' || peek() == '_') ++at_;
    if (at_ == start) {
      error(peek() == '[' ? "tables are not used here, write key = value lines"
                          : "expected a key, for example steps = 4");
    }
    return text_.substr(start, at_ - start);
  }

  std::string value() {
    const char c = peek();
    if (c == '"') return basic_string();
    if (c == '\'') return literal_string();
    const size_t start = at_;
    while (!at_end() && std::string(" \t\r\n,]#").find(peek()) == std::string::npos) ++at_;
    const std::string word = text_.substr(start, at_ - start);
    if (word == "true" || word == "false") return word;
    if (word.empty()) error("a value is missing");
    // The flag checks what kind of number it is.
    if (word.find_first_not_of("0123456789+-.eE_") != std::string::npos) {
      error("\"" + word + "\" is neither a number, true nor false; put text in quotes");
    }
    std::string digits;
    for (const char d : word) {
      if (d != '_') digits += d;
    }
    return digits[0] == '+' ? digits.substr(1) : digits;
  }

  std::string literal_string() {
    const size_t end = text_.find_first_of("'\n", at_ + 1);
    if (end == std::string::npos || text_[end] == '\n') error("a string has no closing quote");
    std::string text = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return text;
  }

  std::string basic_string() {
    std::string out;
    for (++at_; !at_end() && peek() != '\n'; ++at_) {
      if (peek() == '"') {
        ++at_;
        return out;
      }
      if (peek() != '\\') {
        out += peek();
        continue;
      }
      ++at_;
      switch (peek()) {
        case 'n': out += '\n'; break;
        case 't': out += '\t'; break;
        case 'r': out += '\r'; break;
        case '"': out += '"'; break;
        case '\\': out += '\\'; break;
        case 'u': append_utf8(out, escaped_code_point()); break;
        default: error("unknown escape in a string; use single quotes for text with backslashes");
      }
    }
    error("a string has no closing quote");
  }

  uint32_t escaped_code_point() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      ++at_;
      const int c = std::tolower(static_cast<unsigned char>(peek()));
      if (!std::isxdigit(c)) error("\\u needs four hexadecimal digits");
      code = code * 16 + static_cast<uint32_t>(std::isdigit(c) ? c - '0' : c - 'a' + 10);
    }
    if (code >= 0xd800 && code < 0xe000) error("\\u escapes of surrogates are not allowed");
    return code;
  }

  std::vector<std::string> array() {
    std::vector<std::string> values;
    ++at_;
    for (;;) {
      skip_blank(true);
      if (peek() == ']') {
        ++at_;
        return values;
      }
      if (at_end()) error("an array has no closing bracket");
      values.push_back(value());
      skip_blank(true);
      if (peek() == ',') {
        ++at_;
      } else if (!at_end() && peek() != ']') {
        error("expected , or ] in an array");
      }
    }
  }

  const std::string& text_;
  const std::string& what_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<ConfigEntry> parse_config(const std::string& text, const std::string& what) {
  return ConfigParser(text, what).run();
}

}  // namespace h3
