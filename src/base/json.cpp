#include "base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/utf8.h"

namespace h3 {
namespace {

constexpr int kMaxDepth = 64;

const char* name_of(Json::Kind kind) {
  switch (kind) {
    case Json::Kind::null: return "null";
    case Json::Kind::boolean: return "a boolean";
    case Json::Kind::integer: return "an integer";
    case Json::Kind::number: return "a number";
    case Json::Kind::string: return "a string";
    case Json::Kind::array: return "an array";
    case Json::Kind::object: return "an object";
  }
  return "?";
}

[[noreturn]] void mismatch(const char* expected, const Json& found) {
  std::string text = found.dump();
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  fail(Code::data, "expected %s, found %s: %s", expected, name_of(found.kind()), text.c_str());
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  Json document() {
    Json value = parse_value(0);
    skip_space();
    if (at_ != text_.size()) error("the end of the text");
    return value;
  }

 private:
  [[noreturn]] void error_at(size_t offset, const std::string& problem) const {
    fail(Code::data, "%.*s: invalid JSON at byte %zu: %s", static_cast<int>(what_.size()), what_.data(), offset,
         problem.c_str());
  }

  [[noreturn]] void error(const char* expected) const {
    if (at_ >= text_.size()) error_at(at_, strf("expected %s, found the end of the text", expected));
    const unsigned char c = static_cast<unsigned char>(text_[at_]);
    error_at(at_, c >= 0x20 && c < 0x7f ? strf("expected %s, found '%c'", expected, c)
                                        : strf("expected %s, found byte 0x%02x", expected, c));
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      ++at_;
  }

  bool accept(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool accept(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Json parse_value(int depth) {
    if (depth > kMaxDepth) error_at(at_, strf("nested deeper than %d levels", kMaxDepth));
    skip_space();
    if (at_ >= text_.size()) error("a value");
    switch (text_[at_]) {
      case '{': return parse_object(depth);
      case '[': return parse_array(depth);
      case '"': return Json(parse_string());
      case 't':
        if (accept("true")) return Json(true);
        break;
      case 'f':
        if (accept("false")) return Json(false);
        break;
      case 'n':
        if (accept("null")) return Json();
        break;
      default:
        if (text_[at_] == '-' || is_digit(text_[at_])) return parse_number();
    }
    error("a value");
  }

  Json parse_array(int depth) {
    Json out = Json::array();
    ++at_;
    skip_space();
    if (accept(']')) return out;
    while (true) {
      out.push(parse_value(depth + 1));
      skip_space();
      if (accept(']')) return out;
      if (!accept(',')) error("',' or ']'");
    }
  }

  Json parse_object(int depth) {
    const size_t start = at_;
    std::vector<Json::Member> members;
    ++at_;
    skip_space();
    if (!accept('}')) {
      while (true) {
        skip_space();
        if (at_ >= text_.size() || text_[at_] != '"') error("a member name in quotes");
        std::string key = parse_string();
        skip_space();
        if (!accept(':')) error("':'");
        members.emplace_back(std::move(key), parse_value(depth + 1));
        skip_space();
        if (accept('}')) break;
        if (!accept(',')) error("',' or '}'");
      }
    }
    reject_duplicates(members, start);
    return Json::object(std::move(members));
  }

  void reject_duplicates(const std::vector<Json::Member>& members, size_t start) const {
    std::vector<std::string_view> keys;
    keys.reserve(members.size());
    for (const Json::Member& member : members) keys.push_back(member.first);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) {
      error_at(start, strf("this object names \"%.200s\" twice", std::string(*twice).c_str()));
    }
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  bool digits() {
    const size_t start = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    return at_ > start;
  }

  Json parse_number() {
    const size_t start = at_;
    bool whole = true;
    accept('-');
    if (!accept('0') && !digits()) error("a digit");
    if (accept('.')) {
      whole = false;
      if (!digits()) error("a digit");
    }
    if (accept('e') || accept('E')) {
      whole = false;
      if (!accept('+')) accept('-');
      if (!digits()) error("a digit");
    }
    const char* first = text_.data() + start;
    const char* last = text_.data() + at_;
    int64_t integer = 0;
    if (whole && std::from_chars(first, last, integer).ec == std::errc() && !(integer == 0 && *first == '-')) {
      return Json(integer);
    }
    double number = 0;
    const std::from_chars_result result = std::from_chars(first, last, number);
    if (result.ec == std::errc::result_out_of_range) {
      return Json(underflow(std::string_view(first, static_cast<size_t>(last - first)), start));
    }
    return Json(number);
  }

  // from_chars says "out of range" both for a number too large, an error here, and for one too small, which is zero.
  // The decimal exponent of the first non-zero digit tells which.
  double underflow(std::string_view token, size_t start) const {
    const size_t e = token.find_first_of("eE");
    const std::string_view mantissa = token.substr(0, e);
    const size_t first = mantissa.find_first_of("123456789");
    const size_t point = std::min(mantissa.find('.'), mantissa.size());
    int64_t exponent = 0;
    if (e != token.npos) {
      const bool negative = token[e + 1] == '-';
      for (size_t i = e + 1 + (negative || token[e + 1] == '+'); i < token.size(); ++i) {
        exponent = std::min<int64_t>(exponent * 10 + (token[i] - '0'), int64_t{1} << 40);
      }
      if (negative) exponent = -exponent;
    }
    if (first == mantissa.npos) return 0.0;
    exponent += static_cast<int64_t>(point) - static_cast<int64_t>(first);
    if (exponent > 0) error_at(start, "a number outside the range of a double");
    return token[0] == '-' ? -0.0 : 0.0;
  }

  uint32_t hex4() {
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      if (is_digit(c))
        value = value * 16 + static_cast<uint32_t>(c - '0');
      else if (c >= 'a' && c <= 'f')
        value = value * 16 + static_cast<uint32_t>(c - 'a' + 10);
      else if (c >= 'A' && c <= 'F')
        value = value * 16 + static_cast<uint32_t>(c - 'A' + 10);
      else
        error("four hexadecimal digits");
    }
    return value;
  }

  uint32_t escaped_code_point() {
    const size_t start = at_ - 2;
    uint32_t code = hex4();
    if (code < 0xd800 || code > 0xdfff) return code;
    if (code < 0xdc00 && accept("\\u")) {
      const uint32_t low = hex4();
      if (low >= 0xdc00 && low <= 0xdfff) return 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    error_at(start, "an unpaired surrogate");
  }

  void parse_escape(std::string& out) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    ++at_;
    switch (c) {
      case '"':
      case '\\':
      case '/': out += c; return;
      case 'b': out += '\b'; return;
      case 'f': out += '\f'; return;
      case 'n': out += '\n'; return;
      case 'r': out += '\r'; return;
      case 't': out += '\t'; return;
      case 'u': append_utf8(out, escaped_code_point()); return;
      default: --at_; error("an escape of JSON");
    }
  }

  std::string parse_string() {
    std::string out;
    ++at_;
    while (true) {
      if (at_ >= text_.size()) error("'\"'");
      const unsigned char c = static_cast<unsigned char>(text_[at_]);
      if (c == '"') {
        ++at_;
        return out;
      }
      if (c == '\\') {
        ++at_;
        parse_escape(out);
      } else if (c < 0x20) {
        error_at(at_, strf("control byte 0x%02x in a string; write it as an escape", c));
      } else {
        const size_t length = utf8_sequence(text_.substr(at_));
        if (length == 0) error_at(at_, "invalid UTF-8 in a string");
        out.append(text_, at_, length);
        at_ += length;
      }
    }
  }

  std::string_view text_, what_;
  size_t at_ = 0;
};

void write_string(std::string& out, std::string_view text) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += text[i++];
    } else if (c == '\n' || c == '\t' || c == '\r') {
      out += c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r";
      ++i;
    } else if (c < 0x20) {
      out += strf("\\u%04x", c);
      ++i;
    } else {
      // Texts of users (paths, prompts) may hold any bytes; what is written must stay valid.
      const size_t length = utf8_sequence(text.substr(i));
      if (length == 0)
        out += "\\ufffd";
      else
        out.append(text, i, length);
      i += std::max<size_t>(length, 1);
    }
  }
  out += '"';
}

}  // namespace

Json::Json(uint64_t value) {
  if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    kind_ = Kind::integer;
    int_ = static_cast<int64_t>(value);
  } else {
    kind_ = Kind::number;
    double_ = static_cast<double>(value);
  }
}

Json Json::array(std::initializer_list<Json> items) {
  Json out;
  out.kind_ = Kind::array;
  out.items_ = items;
  return out;
}

Json Json::object(std::initializer_list<Member> members) {
  Json out;
  out.kind_ = Kind::object;
  for (const Member& member : members) out.set(member.first, member.second);
  return out;
}

Json Json::object(std::vector<Member> members) {
  Json out;
  out.kind_ = Kind::object;
  out.members_ = std::move(members);
  return out;
}

Json Json::parse(std::string_view text, std::string_view what) { return Parser(text, what).document(); }

bool Json::as_bool() const {
  if (kind_ != Kind::boolean) mismatch("true or false", *this);
  return bool_;
}

int64_t Json::as_int() const {
  if (kind_ == Kind::integer) return int_;
  if (kind_ != Kind::number || double_ != std::floor(double_) || std::fabs(double_) >= 9007199254740992.0) {
    mismatch("an integer", *this);
  }
  return static_cast<int64_t>(double_);
}

double Json::as_double() const {
  if (kind_ == Kind::integer) return static_cast<double>(int_);
  if (kind_ != Kind::number) mismatch("a number", *this);
  return double_;
}

const std::string& Json::as_string() const {
  if (kind_ != Kind::string) mismatch("a string", *this);
  return string_;
}

const std::vector<Json>& Json::items() const {
  if (kind_ != Kind::array) mismatch("an array", *this);
  return items_;
}

const std::vector<Json::Member>& Json::members() const {
  if (kind_ != Kind::object) mismatch("an object", *this);
  return members_;
}

const Json* Json::find(std::string_view key) const {
  for (const Member& member : members_) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  if (kind_ != Kind::object) mismatch("an object", *this);
  const Json* value = find(key);
  if (value == nullptr) fail(Code::data, "\"%.*s\" is missing", static_cast<int>(key.size()), key.data());
  return *value;
}

const Json& Json::at(size_t index) const {
  if (kind_ != Kind::array) mismatch("an array", *this);
  if (index >= items_.size()) fail(Code::data, "element %zu is missing: the array has %zu", index, items_.size());
  return items_[index];
}

Json& Json::set(std::string key, Json value) {
  H3_ASSERT(kind_ == Kind::object || kind_ == Kind::null);
  kind_ = Kind::object;
  for (Member& member : members_) {
    if (member.first == key) {
      member.second = std::move(value);
      return *this;
    }
  }
  members_.emplace_back(std::move(key), std::move(value));
  return *this;
}

Json& Json::push(Json value) {
  H3_ASSERT(kind_ == Kind::array || kind_ == Kind::null);
  kind_ = Kind::array;
  items_.push_back(std::move(value));
  return *this;
}

std::string Json::dump(int indent) const {
  std::string out;
  write(out, indent, 0);
  return out;
}

void Json::write(std::string& out, int indent, int depth) const {
  const auto line = [&](int level) {
    if (indent < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(indent) * static_cast<size_t>(level), ' ');
  };
  switch (kind_) {
    case Kind::null: out += "null"; return;
    case Kind::boolean: out += bool_ ? "true" : "false"; return;
    case Kind::integer: out += std::to_string(int_); return;
    case Kind::number: {
      if (!std::isfinite(double_)) {  // JSON has no such values
        out += "null";
        return;
      }
      char digits[32];
      const std::to_chars_result end = std::to_chars(digits, digits + sizeof digits, double_);
      out.append(digits, end.ptr);
      return;
    }
    case Kind::string: write_string(out, string_); return;
    case Kind::array:
      out += '[';
      for (size_t i = 0; i < items_.size(); ++i) {
        if (i > 0) out += ',';
        line(depth + 1);
        items_[i].write(out, indent, depth + 1);
      }
      if (!items_.empty()) line(depth);
      out += ']';
      return;
    case Kind::object:
      out += '{';
      for (size_t i = 0; i < members_.size(); ++i) {
        if (i > 0) out += ',';
        line(depth + 1);
        write_string(out, members_[i].first);
        out += indent < 0 ? ":" : ": ";
        members_[i].second.write(out, indent, depth + 1);
      }
      if (!members_.empty()) line(depth);
      out += '}';
  }
}

}  // namespace h3
