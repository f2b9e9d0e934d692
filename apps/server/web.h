// The page and what it loads, as part of the program.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace h3::server {

struct WebFile {
  std::string_view name;  // "index.html"
  std::span<const std::byte> bytes;
};
std::span<const WebFile> web_files();

}  // namespace h3::server
