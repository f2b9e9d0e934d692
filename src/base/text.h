// Small things that are done with words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace h3 {

// With small letters for A to Z; the bytes of other letters stay.
char lower(char c);
std::string lower(std::string_view text);

// "a, b, c" for between = ", ".
std::string joined(const std::vector<std::string>& words, std::string_view between);

}  // namespace h3
