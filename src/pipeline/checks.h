// Checks of single fields of a request. Error(usage | io) with the field, its value, what is allowed and a suggestion.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace h3 {

std::string listed(const std::vector<std::string>& words);  // "a, b or c"
const std::string& one_of(const char* field, const std::string& value, const std::vector<std::string>& allowed);
void in_range(const char* field, int64_t value, int64_t low, int64_t high, const char* example);
std::string size_text(int width, int height);
// "16:9", "16/9", "1.78"; the ratio must lie in 1:4 .. 4:1 (spec dit 4).
double parse_aspect(const std::string& text);
int snap_side(int side);
// What the tiles of the video decoder make of a size (spec vae 4.1): where a slightly smaller one, up to an eighth an
// edge, saves a third of the decoding or more, a note that names it; else "".
std::string tile_hint(int width, int height);
// The folder of `path` must exist and be writable, so that a run cannot fail on its first write.
void check_folder_of(const char* field, const std::string& path);
uint64_t draw_seed();

}  // namespace h3
