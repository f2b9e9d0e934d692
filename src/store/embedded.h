// The demo model that is part of the program: the files of models/demo. Empty in a build without it
// (H3_EMBED_DEMO=OFF).
#pragma once

#include <span>

#include "store/folder.h"

namespace h3 {

std::span<const MemoryFile> embedded_demo();

}  // namespace h3
