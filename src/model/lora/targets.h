// Which matrices of the denoiser an adapter may change, and every name that files give them. The names come from the
// tables of model/dit/weights.h.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/dit/config.h"

namespace h3::lora {

// One matrix of the forward, whatever a file calls it.
struct Site {
  enum class Stack : uint8_t { trunk, refiner, head };
  enum class Part : uint8_t { qkv, out, fc1, fc2, adaln };
  Stack stack = Stack::trunk;
  int64_t block = 0;  // 0 for the head
  Part part = Part::qkv;
  auto operator<=>(const Site&) const = default;
};
std::string name_of(const Site& site);  // "blocks.3.attn.qkv_proj"

// What a module of a file changes: rows [first_row, first_row + rows) of the site, in the row order of the forward
// (q, k, v; gate, value), all columns.
struct Target {
  Site site;
  int64_t first_row = 0, rows = 0;
  int64_t cols = 0;          // -1: the width of the time embedding, which a pruned checkpoint does not tell
  bool value_first = false;  // the file's rows are [value; gate]
};

class TargetTable {
 public:
  explicit TargetTable(const DitConfig& config);
  // By module path without prefix ("blocks.0.mlp.fc1", "transformer_blocks.0.ff.net.0.proj") or by its kohya form with
  // underscores for dots; nullptr when no matrix has this name.
  const Target* find(const std::string& module) const;
  const DitConfig& config() const { return config_; }
  int64_t matrices() const { return matrices_; }        // of the blocks: 208 in the release
  int64_t projections() const { return projections_; }  // AdaLN: 51

 private:
  void add(const std::string& module, const Target& target);

  DitConfig config_;
  std::map<std::string, Target> by_name_;
  int64_t matrices_ = 0, projections_ = 0;
};

}  // namespace h3::lora
