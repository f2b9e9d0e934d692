#include "model/lora/targets.h"

#include <algorithm>

#include "base/error.h"
#include "model/dit/weights.h"

namespace h3::lora {
namespace {

using dit::BlockW;
using dit::Names;

constexpr const char* kSuffix = ".weight";

std::string module_of(const char* name) {
  std::string module = name;
  H3_ASSERT(module.ends_with(kSuffix));
  return module.substr(0, module.size() - std::string(kSuffix).size());
}

Target block_target(const DitConfig& config, const TensorInfo* BlockW::*field, Names names) {
  using Part = Site::Part;
  Target target;
  target.cols = config.hidden;
  const auto set = [&](Part part, int64_t first, int64_t rows) {
    target.site.part = part;
    target.first_row = first;
    target.rows = rows;
  };
  const int64_t inner = config.inner();
  if (field == &BlockW::qkv) set(Part::qkv, 0, 3 * inner);
  if (field == &BlockW::q) set(Part::qkv, 0, inner);
  if (field == &BlockW::k) set(Part::qkv, inner, inner);
  if (field == &BlockW::v) set(Part::qkv, 2 * inner, inner);
  if (field == &BlockW::out) {
    set(Part::out, 0, config.hidden);
    target.cols = inner;
  }
  if (field == &BlockW::fc1) {
    set(Part::fc1, 0, 2 * config.ffn);
    target.value_first = names == Names::diffusers;
  }
  if (field == &BlockW::fc2) {
    set(Part::fc2, 0, config.hidden);
    target.cols = config.ffn;
  }
  H3_ASSERT(target.rows > 0);
  return target;
}

std::string part_name(Site::Part part) {
  switch (part) {
    case Site::Part::qkv: return "attn.qkv_proj";
    case Site::Part::out: return "attn.out_proj";
    case Site::Part::fc1: return "mlp.fc1";
    case Site::Part::fc2: return "mlp.fc2";
    case Site::Part::adaln: return "adaln_proj.linear";
  }
  return "";
}

}  // namespace

std::string name_of(const Site& site) {
  const std::string part = part_name(site.part);
  switch (site.stack) {
    case Site::Stack::trunk: return "blocks." + std::to_string(site.block) + "." + part;
    case Site::Stack::refiner: return "token_refiner.blocks." + std::to_string(site.block) + "." + part;
    case Site::Stack::head: return "final_layer." + part;
  }
  return part;
}

TargetTable::TargetTable(const DitConfig& config) : config_(config) {
  const int64_t adaln_cols = config.time_dim > 0 ? config.time_dim : -1;
  for (const Names names : {Names::comfy, Names::diffusers, Names::cmf}) {
    const size_t column = static_cast<size_t>(names);
    const dit::Prefixes prefixes = dit::kPrefixes[column];
    const auto add_stack = [&](Site::Stack stack, const char* prefix, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        const std::string start = prefix + std::to_string(i) + ".";
        // Files mix the spellings of blocks and of the matrices inside them, so every matrix name goes with every
        // block name; the order of gate and value follows the matrix name.
        for (const auto& row : dit::kBlock) {
          if ((row.flags & kAdapterTarget) == 0) continue;
          for (const Names inside : {Names::comfy, Names::diffusers}) {
            const char* name = row.name[static_cast<size_t>(inside)];
            if (name == nullptr || *name == '\0') continue;
            Target target = block_target(config, row.field, inside);
            target.site.stack = stack;
            target.site.block = i;
            add(start + module_of(name), target);
          }
        }
        if (stack != Site::Stack::trunk) continue;
        for (const auto& row : dit::kAdaln) {
          if ((row.flags & kAdapterTarget) == 0) continue;
          const char* name = row.name[column] == dit::kAsComfy ? row.name[0] : row.name[column];
          add(start + module_of(name), {{stack, i, Site::Part::adaln}, 0, 18 * config.hidden, adaln_cols, false});
        }
      }
    };
    add_stack(Site::Stack::trunk, prefixes.block, config.layers);
    add_stack(Site::Stack::refiner, prefixes.refiner, config.refiner_layers);
    for (const auto& row : dit::kTrunk) {
      if ((row.flags & kAdapterTarget) == 0) continue;
      add(module_of(row.name[column]),
          {{Site::Stack::head, 0, Site::Part::adaln}, 0, 2 * config.hidden, adaln_cols, false});
    }
  }
  matrices_ = 4 * (config.layers + config.refiner_layers);
  projections_ = config.layers + 1;
}

void TargetTable::add(const std::string& module, const Target& target) {
  by_name_.emplace(module, target);
  std::string kohya = module;
  std::replace(kohya.begin(), kohya.end(), '.', '_');
  by_name_.emplace(kohya, target);
}

const Target* TargetTable::find(const std::string& module) const {
  const auto found = by_name_.find(module);
  return found == by_name_.end() ? nullptr : &found->second;
}

}  // namespace h3::lora
