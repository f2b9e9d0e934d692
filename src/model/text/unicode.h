// What the tokenizer needs to know about Unicode. Tables come from utf8proc; without it only ASCII text is accepted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace h3 {

// Classes of the pre-tokeniser (spec conditioner 2.4): general categories L*, N*, white space, everything else.
// Marks, controls, joiners, emoji, U+200B and U+FEFF are `other`.
enum class CharClass : uint8_t { letter, number, space, other };

bool have_unicode_tables();

CharClass class_of(uint32_t code_point);

// Canonical composition of valid UTF-8. Error(usage) for non-ASCII text in a build without tables.
std::string nfc(std::string_view text);

bool is_ascii(std::string_view text);

}  // namespace h3
