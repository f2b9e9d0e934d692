#include "model/text/unicode.h"

#include "base/error.h"

#ifdef H3_HAVE_UNICODE
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#endif

namespace h3 {
namespace {

CharClass ascii_class(uint32_t c) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return CharClass::letter;
  if (c >= '0' && c <= '9') return CharClass::number;
  if (c == ' ' || (c >= 0x09 && c <= 0x0d)) return CharClass::space;  // U+001C..U+001F are not white space
  return CharClass::other;
}

// White_Space of the Unicode character database above ASCII; it does not change between versions.
bool is_wide_space(uint32_t c) {
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
         c == 0x202f || c == 0x205f || c == 0x3000;
}

}  // namespace

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

#ifdef H3_HAVE_UNICODE

bool have_unicode_tables() { return true; }

CharClass class_of(uint32_t c) {
  if (c < 0x80) return ascii_class(c);
  if (is_wide_space(c)) return CharClass::space;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return CharClass::letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return CharClass::number;
    default: return CharClass::other;
  }
}

std::string nfc(std::string_view text) {
  if (is_ascii(text)) return std::string(text);
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &raw, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(raw, &std::free);
  if (size < 0) fail(Code::usage, "text cannot be normalised: %s", utf8proc_errmsg(size));
  return std::string(reinterpret_cast<const char*>(raw), static_cast<size_t>(size));
}

#else

bool have_unicode_tables() { return false; }

CharClass class_of(uint32_t c) {
  if (c < 0x80) return ascii_class(c);
  return is_wide_space(c) ? CharClass::space : CharClass::other;
}

std::string nfc(std::string_view text) {
  if (!is_ascii(text)) {
    fail(Code::usage,
         "the text has characters outside ASCII and this build has no Unicode tables; "
         "rebuild with H3_UNICODE=ON (libutf8proc) or write the prompt in ASCII");
  }
  return std::string(text);
}

#endif

}  // namespace h3
