// Turns opened sources into components with roles, applying the rules for what tensors cannot tell (design 2).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/cmf.h"
#include "store/folder.h"
#include "store/model_files.h"

namespace h3 {

// What the surroundings of a checkpoint say about it.
struct Surroundings {
  Json config;
  std::string config_path;
  std::optional<Partition> partition;  // declared
  std::string partition_by;            // the file that declares it
  bool named = true;                   // the user named this file, rather than a folder around it
};

class Assembler {
 public:
  explicit Assembler(const OpenOptions& options) : options_(options) {}

  // Adds every component of the source. Adapters and unknown files count only when named.
  void add(std::shared_ptr<TensorSource> source, const std::string& origin, const Surroundings& around);

  // Adds every component of a CMF file, its tokenizer and its defaults.
  void add_cmf(const std::shared_ptr<const CmfFile>& file, const std::string& origin);

  // Adds a repository in the diffusers or official layout; false when the folder is neither.
  bool add_repository(const Folder& folder);

  size_t count() const { return files_.components.size() + other_partition_.size(); }

  // Checks roles given twice and flags that matched nothing; returns what was added.
  ModelFiles finish();

 private:
  void drop_replaced();
  void settle_dit(Component& component, const Surroundings& around) const;
  void add_base(const Folder& folder, const std::string& base);
  void read_defaults(const Folder& folder, const std::string& base, const Json& official, const Json& modular);

  const OpenOptions& options_;
  ModelFiles files_;
  std::vector<std::string> other_partition_;  // origins left out because of --partition
};

// What lies around a checkpoint on disk: the config.json beside it (for the official video VAE also the one above), and
// the partition that a repository index one level up declares for its folder.
Surroundings surroundings_of(const std::string& checkpoint);

// The weights and the config of a component folder; nullptr when there are none. The official video VAE keeps both one
// level down, where "source_path" of its config.json says; keys of the inner config are added to the outer one.
std::shared_ptr<TensorSource> open_component(const Folder& folder, const std::string& name, Json& config);

// The tokenizer of a folder: tokenizer.json, or vocab.json with merges.txt; directly inside it or in one of the
// sub-folders of a repository. Empty when there is none.
std::optional<TokenizerFiles> find_tokenizer(const Folder& folder);

}  // namespace h3
