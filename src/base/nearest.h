// "Did you mean": the known word a mistyped one was probably meant to be.
#pragma once

#include <span>
#include <string>

namespace h3 {

// The entry of `known` with the smallest edit distance (insert, delete, replace, swap of neighbours) to `word`; empty
// when even that one is too far to be a typing error: more than a third of the letters, at least 1, at most 3.
std::string nearest(const std::string& word, std::span<const std::string> known);

// " (did you mean X?)", or nothing.
std::string suggestion(const std::string& word, std::span<const std::string> known);

}  // namespace h3
