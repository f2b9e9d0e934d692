// One checkpoint of any kind. What a file is follows from its first bytes, never from its name.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "store/tensor_source.h"

namespace h3 {

// A file, or a folder that holds one safetensors checkpoint. Error(data) for content of no known kind, saying what is
// accepted and, where it can be told, what the file is instead.
std::unique_ptr<TensorSource> open_checkpoint(const std::string& path);

// The same for a whole file in memory, which the caller keeps alive.
std::unique_ptr<TensorSource> open_checkpoint(const std::string& name, std::span<const std::byte> bytes);

// Endings of files that a folder is searched for. Such files are still opened by their content.
bool has_checkpoint_ending(std::string_view path);

}  // namespace h3
