// A folder of a checkpoint on disk.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "store/tensor_source.h"

namespace h3 {

class Folder {
 public:
  explicit Folder(std::string root) : root_(std::move(root)) {}
  std::string path(const std::string& relative) const;  // of a file or sub-folder
  bool has(const std::string& relative) const;          // a regular file
  std::string text(const std::string& relative) const;
  std::string text_or_empty(const std::string& relative) const;
  Json json(const std::string& relative) const;                           // null when absent
  std::unique_ptr<TensorSource> open(const std::string& relative) const;  // a checkpoint
  // The only checkpoint of a sub-folder; nullptr when it holds none.
  std::unique_ptr<TensorSource> weights(const std::string& relative) const;

 private:
  std::string root_;
};

// Error(data) unless `name` is a relative path that stays inside its folder; `where` names the file that holds it.
void require_inside(const std::string& name, const std::string& where);

// Paths of the checkpoints directly inside a folder on disk, sorted: each index, and each file that no index names.
std::vector<std::string> checkpoints_in(const std::string& folder);

}  // namespace h3
