// UTF-8 without tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace h3 {

// Length of the valid UTF-8 sequence that `text` starts with; 0 when there is none. Overlong forms, surrogates and
// code points above U+10FFFF are invalid.
size_t utf8_sequence(std::string_view text);

// The code point of a valid sequence of `length` bytes.
uint32_t utf8_decode(const char* text, size_t length);

void append_utf8(std::string& out, uint32_t code_point);

}  // namespace h3
