#include "store/folder.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file_map.h"
#include "store/open.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

}  // namespace

Json Folder::json(const std::string& relative) const {
  return has(relative) ? Json::parse(text(relative), path(relative)) : Json();
}

std::string Folder::text_or_empty(const std::string& relative) const {
  return has(relative) ? text(relative) : std::string();
}

std::string DiskFolder::path(const std::string& relative) const {
  if (relative.empty()) return root_;
  return root_.empty() || root_.back() == '/' ? root_ + relative : root_ + "/" + relative;
}

bool DiskFolder::has(const std::string& relative) const {
  std::error_code error;
  return fs::is_regular_file(path(relative), error);
}

std::string DiskFolder::text(const std::string& relative) const { return read_file(path(relative)); }

std::unique_ptr<TensorSource> DiskFolder::open(const std::string& relative) const {
  return open_checkpoint(path(relative));
}

std::unique_ptr<TensorSource> DiskFolder::weights(const std::string& relative) const {
  const std::vector<std::string> checkpoints = checkpoints_in(path(relative));
  if (checkpoints.empty()) return nullptr;
  return open_checkpoint(checkpoints.size() == 1 ? checkpoints[0] : path(relative));
}

const MemoryFile* MemoryFolder::find(const std::string& relative) const {
  for (const MemoryFile& file : files_) {
    if (file.name == relative) return &file;
  }
  return nullptr;
}

std::string MemoryFolder::path(const std::string& relative) const {
  return relative.empty() ? name_ : name_ + "/" + relative;
}

bool MemoryFolder::has(const std::string& relative) const { return find(relative) != nullptr; }

const MemoryFile& MemoryFolder::at(const std::string& relative) const {
  const MemoryFile* file = find(relative);
  if (file == nullptr) fail(Code::io, "%s does not exist", path(relative).c_str());
  return *file;
}

std::string MemoryFolder::text(const std::string& relative) const {
  const std::span<const std::byte> bytes = at(relative).bytes;
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::unique_ptr<TensorSource> MemoryFolder::open(const std::string& relative) const {
  return open_checkpoint(path(relative), at(relative).bytes);
}

std::unique_ptr<TensorSource> MemoryFolder::weights(const std::string& relative) const {
  for (const MemoryFile& file : files_) {
    const bool inside = file.name.size() > relative.size() && file.name.substr(0, relative.size()) == relative &&
                        file.name.find('/', relative.size() + 1) == file.name.npos;
    if (inside && has_checkpoint_ending(file.name)) return open(std::string(file.name));
  }
  return nullptr;
}

void require_inside(const std::string& name, const std::string& where) {
  const fs::path path(name);
  bool inside = !name.empty() && path.is_relative() && name.find('\\') == name.npos && name.find('\0') == name.npos;
  for (const fs::path& part : path) inside = inside && part != "..";
  if (!inside) {
    fail(Code::data, "%s names '%s'; names must be relative and stay inside the folder", where.c_str(), name.c_str());
  }
}

std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::vector<std::string> indices, files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string path = entry.path().string();
    if (!has_checkpoint_ending(path)) continue;
    (ends_with(path, kIndexSuffix) ? indices : files).push_back(path);
  }
  std::set<std::string> shards;
  for (const std::string& index : indices) {
    const Json json = Json::parse(read_file(index), index);
    const Json* weight_map = json.find("weight_map");
    if (weight_map == nullptr || !weight_map->is_object()) continue;
    for (const auto& [tensor, shard] : weight_map->members()) {
      if (shard.is_string()) shards.insert((fs::path(folder) / shard.as_string()).string());
    }
  }
  for (const std::string& file : files) {
    if (shards.count(file) == 0) indices.push_back(file);
  }
  std::sort(indices.begin(), indices.end());
  return indices;
}

}  // namespace h3
