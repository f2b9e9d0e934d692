// A folder of a checkpoint: on disk, or embedded in the program.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "store/tensor_source.h"

namespace h3 {

class Folder {
 public:
  virtual ~Folder() = default;
  // The path of a file or sub-folder, for messages.
  virtual std::string path(const std::string& relative) const = 0;
  virtual bool has(const std::string& relative) const = 0;  // a regular file
  virtual std::string text(const std::string& relative) const = 0;
  virtual std::unique_ptr<TensorSource> open(const std::string& relative) const = 0;  // a checkpoint
  // The only checkpoint of a sub-folder; nullptr when it holds none.
  virtual std::unique_ptr<TensorSource> weights(const std::string& relative) const = 0;

  Json json(const std::string& relative) const;  // null when absent
  std::string text_or_empty(const std::string& relative) const;
};

class DiskFolder final : public Folder {
 public:
  explicit DiskFolder(std::string root) : root_(std::move(root)) {}
  std::string path(const std::string& relative) const override;
  bool has(const std::string& relative) const override;
  std::string text(const std::string& relative) const override;
  std::unique_ptr<TensorSource> open(const std::string& relative) const override;
  std::unique_ptr<TensorSource> weights(const std::string& relative) const override;

 private:
  std::string root_;
};

struct MemoryFile {
  std::string_view name;  // "vae/config.json"
  std::span<const std::byte> bytes;
};

// Files in memory that outlive the folder and every source made from it.
class MemoryFolder final : public Folder {
 public:
  MemoryFolder(std::string name, std::vector<MemoryFile> files) : name_(std::move(name)), files_(std::move(files)) {}
  std::string path(const std::string& relative) const override;
  bool has(const std::string& relative) const override;
  std::string text(const std::string& relative) const override;
  std::unique_ptr<TensorSource> open(const std::string& relative) const override;
  std::unique_ptr<TensorSource> weights(const std::string& relative) const override;

 private:
  const MemoryFile* find(const std::string& relative) const;
  const MemoryFile& at(const std::string& relative) const;
  std::string name_;
  std::vector<MemoryFile> files_;
};

// Error(data) unless `name` is a relative path that stays inside its folder; `where` names the file that holds it.
void require_inside(const std::string& name, const std::string& where);

// Paths of the checkpoints directly inside a folder on disk, sorted: each index, and each file that no index names.
std::vector<std::string> checkpoints_in(const std::string& folder);

}  // namespace h3
