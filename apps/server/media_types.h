// What files are, by their first bytes, and what HTTP calls them.
#pragma once

#include <string>
#include <string_view>

namespace h3::server {

// ".png", ".mp4" ...; ".bin" for what is not known, which may be readable all the same.
std::string ending_of(std::string_view bytes);
// "image/png" for "png" or ".png"; "application/octet-stream" for what is not known.
std::string media_type_of(const std::string& ending);

}  // namespace h3::server
