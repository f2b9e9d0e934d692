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

}  // namespace

Json Folder::json(const std::string& relative) const {
  return has(relative) ? Json::parse(text(relative), path(relative)) : Json();
}

std::string Folder::text_or_empty(const std::string& relative) const {
  return has(relative) ? text(relative) : std::string();
}

std::string Folder::path(const std::string& relative) const {
  if (relative.empty()) return root_;
  return root_.empty() || root_.back() == '/' ? root_ + relative : root_ + "/" + relative;
}

bool Folder::has(const std::string& relative) const {
  std::error_code error;
  return fs::is_regular_file(path(relative), error);
}

std::string Folder::text(const std::string& relative) const { return read_file(path(relative)); }

std::unique_ptr<TensorSource> Folder::open(const std::string& relative) const {
  return open_checkpoint(path(relative));
}

std::unique_ptr<TensorSource> Folder::weights(const std::string& relative) const {
  const std::vector<std::string> checkpoints = checkpoints_in(path(relative));
  if (checkpoints.empty()) return nullptr;
  return open_checkpoint(checkpoints.size() == 1 ? checkpoints[0] : path(relative));
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
    (path.ends_with(kIndexSuffix) ? indices : files).push_back(path);
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
