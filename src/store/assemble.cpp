#include "store/assemble.h"

#include <algorithm>

#include "base/error.h"
#include "store/cmf_source.h"
#include "store/recognise.h"

namespace h3 {
namespace {

constexpr const char* kOfficialDit = "MiniMaxH3DiTModel";
constexpr const char* kOfficialVideoVae = "MiniMaxH3VideoVAE";

std::string class_of(const Json& config) {
  const Json* name = config.find("_class_name");
  return name != nullptr && name->is_string() ? name->as_string() : std::string();
}

// A config.json may lie beside several files: it belongs to a component when its class does, or when it names none.
bool config_fits(const Json& config, Role role) {
  const std::string name = class_of(config);
  const Json* type = config.find("model_type");
  if (name.empty()) return (type == nullptr) || (role == Role::conditioner);
  switch (role) {
    case Role::dit: return name == kOfficialDit || name == "MiniMaxH3Transformer3DModel";
    case Role::video_vae: return name == kOfficialVideoVae || name == "AutoencoderKLMiniMaxH3";
    case Role::audio_vae: return name.find("Audio") != name.npos;
    default: return false;
  }
}

template <typename Value>
std::optional<Value> from_name(const std::string& name, Value first, Value second, const std::string& where) {
  if (name == name_of(first)) return first;
  if (name == name_of(second)) return second;
  fail(Code::data, "%s: '%s' is not one of '%s' and '%s'", where.c_str(), name.c_str(), name_of(first),
       name_of(second));
}

const std::string* metadata_of(const TensorSource& source, const char* key) {
  const auto found = source.metadata().find(key);
  return found == source.metadata().end() ? nullptr : &found->second;
}

// Declared beats flag beats convention; a flag against a declaration is an error, so that neither is silently lost.
template <typename Value>
void settle(Value& value, std::string& from, const std::optional<Value>& declared, const std::string& declared_by,
            const std::optional<Value>& flag, const char* flag_name, Value assumed, const std::string& why,
            const std::string& origin) {
  if (declared) {
    if (flag && *flag != *declared) {
      fail(Code::usage, "%s: %s %s contradicts %s, which declares '%s'; leave the flag out", origin.c_str(), flag_name,
           name_of(*flag), declared_by.c_str(), name_of(*declared));
    }
    value = *declared;
    from = "declared by " + declared_by;
  } else if (flag) {
    value = *flag;
    from = flag_name;
  } else {
    value = assumed;
    from = "assumed: " + why;
  }
}

}  // namespace

void Assembler::settle_dit(Component& component, const Surroundings& around) const {
  const TensorSource& source = *component.source;
  std::optional<Partition> partition = around.partition;
  std::string partition_by = around.partition_by;
  if (const std::string* text = metadata_of(source, "h3.partition")) {
    partition_by = component.origin;
    partition = from_name(*text, Partition::fl2va, Partition::ref2va, component.origin + " (h3.partition)");
  }
  settle(component.partition, component.partition_from, partition, partition_by, options_.partition, "--partition",
         Partition::fl2va, "the file does not say; --partition ref2va for the other", component.origin);

  std::optional<QkvOrder> order;
  std::string order_by;
  if (component.spelling == Spelling::diffusers) {
    order = QkvOrder::contiguous;
    order_by = "separate q, k and v matrices";
  } else if (component.spelling == Spelling::cmf) {
    order = QkvOrder::contiguous;
    order_by = "the CMF format";
  } else if (const std::string* text = metadata_of(source, "h3.qkv_order")) {
    order_by = component.origin;
    order = from_name(*text, QkvOrder::contiguous, QkvOrder::interleaved, component.origin + " (h3.qkv_order)");
  } else if (class_of(component.config) == kOfficialDit) {
    order = QkvOrder::interleaved;
    order_by = around.config_path;
  }
  const bool sharded = source.files().size() > 1;
  settle(component.qkv_order, component.qkv_order_from, order, order_by, options_.qkv_order, "--qkv-order",
         sharded ? QkvOrder::interleaved : QkvOrder::contiguous,
         sharded ? "shards with these names are the official ones, which interleave q, k and v per head"
                 : "single files in the ComfyUI spelling hold all q, then k, then v",
         component.origin);
}

void Assembler::add(std::shared_ptr<TensorSource> source, const std::string& origin, const Surroundings& around) {
  for (const Recognised& found : recognise(*source)) {
    if (!around.named && (found.role == Role::unknown || found.role == Role::adapter)) continue;
    if (!options_.inspect && found.role == Role::unknown) {
      fail(
          Code::data,
          "%s: not a part of this model: none of its %zu tensors (the first is '%s') names a transformer, conditioner, "
          "video or audio VAE, ClipProj or adapter",
          origin.c_str(), source->tensors().size(),
          source->tensors().empty() ? "-" : source->tensors()[0].name.c_str());
    }
    if (!options_.inspect && !found.unsupported.empty()) {
      fail(Code::data, "%s: %s", origin.c_str(), found.unsupported.c_str());
    }
    Component component;
    component.role = found.role;
    component.spelling = found.spelling;
    component.source = source;
    component.origin = origin;
    component.prefix = found.prefix;
    component.unsupported = found.unsupported;
    if (config_fits(around.config, found.role)) component.config = around.config;
    const std::string name = class_of(component.config);
    const bool bare_video_vae = found.role == Role::video_vae && source->find(found.prefix + "latents_mean") == nullptr;
    if (found.spelling == Spelling::comfy && (name == kOfficialDit || name == kOfficialVideoVae || bare_video_vae)) {
      component.spelling = Spelling::official;
    }
    if (found.role == Role::dit) {
      if (!around.named && options_.partition && around.partition && *around.partition != *options_.partition) {
        other_partition_.push_back(origin);
        continue;
      }
      settle_dit(component, around);
    }
    files_.components.push_back(std::move(component));
  }
}

void Assembler::add_cmf(const std::shared_ptr<const CmfFile>& file, const std::string& origin) {
  const std::vector<CmfPart> parts = cmf_parts(file);
  if (parts.empty() && !options_.inspect) {
    fail(Code::data, "%s: none of the %zu tensors of this CMF file is a part of this model", origin.c_str(),
         file->tensors().size());
  }
  const std::vector<Partition> partitions = cmf_partitions(*file);
  for (const CmfPart& part : parts) {
    Component component;
    component.role = part.role;
    component.spelling = Spelling::cmf;
    component.source = part.source;
    component.config = part.config;
    component.origin = origin;
    component.prefix = part.prefix;
    if (part.role != Role::dit) {
      files_.components.push_back(std::move(component));
      continue;
    }
    // A transformer that serves both partitions is one component in each slot.
    Surroundings around;
    around.partition_by = origin;
    for (size_t i = 0; i == 0 || i < partitions.size(); ++i) {
      if (!partitions.empty()) around.partition = partitions[i];
      if (partitions.size() > 1 && options_.partition && *options_.partition != partitions[i]) continue;
      settle_dit(component, around);
      files_.components.push_back(component);
    }
  }
  if (const Json defaults = cmf_defaults(*file); defaults.is_object()) {
    for (const auto& [key, value] : defaults.members()) files_.defaults.set(key, value);
  }
  if (!files_.tokenizer) files_.tokenizer = cmf_tokenizer(*file);
}

// Keeps the last component of every role. A ClipProj belongs to the conditioner of its own file: it goes when that one
// is replaced.
void Assembler::drop_replaced() {
  const std::vector<Component>& all = files_.components;
  std::vector<bool> replaced(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = i + 1; j < all.size(); ++j) {
      const bool same_role = all[i].role == all[j].role && all[i].role != Role::adapter;
      if (same_role && (all[i].role != Role::dit || all[i].partition == all[j].partition)) replaced[i] = true;
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < all.size() && all[i].role == Role::clip_proj; ++j) {
      if (replaced[j] && all[j].role == Role::conditioner && all[j].origin == all[i].origin) replaced[i] = true;
    }
  }
  std::vector<Component> kept;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!replaced[i]) kept.push_back(all[i]);
  }
  files_.components = std::move(kept);
}

ModelFiles Assembler::finish() {
  const std::vector<Component>& all = files_.components;
  if (options_.inspect) return std::move(files_);
  if (options_.replace) drop_replaced();
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = i + 1; j < all.size(); ++j) {
      if (all[i].role != all[j].role || all[i].role == Role::adapter) continue;
      if (all[i].role == Role::dit && all[i].partition != all[j].partition) continue;
      fail(Code::usage, "two files with the same role (%s): %s and %s; give one of them", name_of(all[i].role),
           all[i].origin.c_str(), all[j].origin.c_str());
    }
  }
  if (!other_partition_.empty() && files_.find(Role::dit) == nullptr) {
    fail(Code::usage, "--partition %s: %s holds the other partition only", name_of(*options_.partition),
         other_partition_[0].c_str());
  }
  return std::move(files_);
}

}  // namespace h3
