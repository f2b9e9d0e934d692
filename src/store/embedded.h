// The demo model that is part of the program: the files of models/demo. Empty in a build without it
// (H3_EMBED_DEMO=OFF).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace h3 {

struct MemoryFile {
  std::string_view name;  // "reference/kf_first.png"
  std::span<const std::byte> bytes;
};

std::span<const MemoryFile> embedded_demo();

}  // namespace h3
