// Tensors made in memory as a file on disk.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "store/tensor_source.h"

namespace h3::testing {

inline std::string put_file(const TensorSource& source, const std::string& path,
                            const std::map<std::string, std::string>& metadata = {}) {
  std::vector<TensorToWrite> tensors;
  for (const TensorInfo& info : source.tensors()) tensors.push_back({info.name, info.format, info.dims, info.data});
  write_safetensors(path, tensors, metadata);
  return path;
}

}  // namespace h3::testing
