// Repositories: the diffusers layout (one folder per component, modular_model_index.json) and the official one
// (FL2VA/ and Ref2VA/, each with model_index.json). Spec formats F.
#include <filesystem>
#include <map>

#include "base/error.h"
#include "store/assemble.h"

namespace h3 {
namespace {

constexpr const char* kSlots[] = {"transformer", "transformer_ref", "vae", "video_vae", "audio_vae", "text_encoder"};

// The sub-folder of a slot: its own name unless modular_model_index.json says otherwise.
std::string subfolder_of(const Json& modular, const std::string& slot, const std::string& where) {
  const Json* entry = modular.find(slot);
  if (entry == nullptr || !entry->is_array() || entry->size() < 3) return slot;
  const Json* subfolder = entry->at(size_t{2}).find("subfolder");
  if (subfolder == nullptr || !subfolder->is_string() || subfolder->as_string().empty()) return slot;
  require_inside(subfolder->as_string(), where);
  return subfolder->as_string();
}

std::string string_or(const Json& object, const char* key, const std::string& otherwise) {
  const Json* value = object.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : otherwise;
}

// Adds the keys that `config` lacks.
void add_missing(Json& config, const Json& more) {
  if (!more.is_object()) return;
  for (const auto& [key, value] : more.members()) {
    if (config.find(key) == nullptr) config.set(key, value);
  }
}

// The partition of a transformer slot, and what declares it.
void declare_partition(Surroundings& around, const Folder& folder, const std::string& base, const std::string& slot,
                       const Json& official, const Json& modular) {
  if (official.is_object()) {
    const std::string name = string_or(official, "partition", "");
    around.partition_by = folder.path(base + "model_index.json");
    if (name == "fl2va")
      around.partition = Partition::fl2va;
    else if (name == "ref2va")
      around.partition = Partition::ref2va;
    else {
      fail(Code::data, "%s: partition '%s' is not one of 'fl2va' and 'ref2va'", around.partition_by.c_str(),
           name.c_str());
    }
    return;
  }
  around.partition = slot == "transformer_ref" ? Partition::ref2va : Partition::fl2va;
  around.partition_by = folder.path(base + (modular.find(slot) != nullptr ? "modular_model_index.json" : slot));
}

}  // namespace

std::shared_ptr<TensorSource> open_component(const Folder& folder, const std::string& name, Json& config) {
  const std::string config_path = name.empty() ? "config.json" : name + "/config.json";
  config = folder.json(config_path);
  std::shared_ptr<TensorSource> source = folder.weights(name);
  if (source != nullptr || !config.is_object()) return source;
  const std::string inner = string_or(config, "source_path", "source");
  require_inside(inner, folder.path(config_path));
  const std::string inner_name = name.empty() ? inner : name + "/" + inner;
  add_missing(config, folder.json(inner_name + "/config.json"));
  const std::string file = string_or(config, "source_safetensors_path", "model.safetensors");
  require_inside(file, folder.path(config_path));
  if (folder.has(inner_name + "/" + file)) return folder.open(inner_name + "/" + file);
  return folder.weights(inner_name);
}

Surroundings surroundings_of(const std::string& checkpoint) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path parent = fs::absolute(checkpoint, error).lexically_normal().parent_path();
  const Folder folder(fs::path(checkpoint).parent_path().string());
  const Folder above(parent.parent_path().string());
  Surroundings around;
  around.config = folder.json("config.json");
  around.config_path = folder.path("config.json");
  const Json outer = above.json("config.json");
  if (string_or(outer, "source_path", "") == parent.filename().string()) {
    const Json inner = around.config;
    around.config = outer;
    around.config_path = above.path("config.json");
    add_missing(around.config, inner);
  }
  const Json index = above.json("model_index.json");
  const Json modular = above.json("modular_model_index.json");
  const Json* block = index.find("_minimax_h3");
  std::string slot;
  int slots = 0;
  for (const char* name : {"transformer", "transformer_ref"}) {
    if (subfolder_of(modular, name, above.path("modular_model_index.json")) != parent.filename().string()) continue;
    slot = name;
    ++slots;
  }
  // One folder in both slots serves both partitions: then nothing is declared.
  if (slots == 1 && (block != nullptr || modular.is_object())) {
    declare_partition(around, above, "", slot, block == nullptr ? Json() : *block, modular);
  }
  return around;
}

void Assembler::add_base(const Folder& folder, const std::string& base) {
  const std::string modular_path = base + "modular_model_index.json";
  const Json modular = folder.json(modular_path);
  const Json index = folder.json(base + "model_index.json");
  const Json* block = index.find("_minimax_h3");
  const Json official = block == nullptr ? Json() : *block;
  read_defaults(folder, base, official, modular);
  struct Opened {
    std::shared_ptr<TensorSource> source;
    Json config;
  };
  std::map<std::string, Opened> opened;  // transformer and transformer_ref may name one folder
  for (const char* slot : kSlots) {
    const std::string name = base + subfolder_of(modular, slot, folder.path(modular_path));
    if (opened.count(name) == 0) {
      Opened entry;
      entry.source = open_component(folder, name, entry.config);
      opened[name] = entry;
    }
    const Opened& entry = opened[name];
    if (entry.source == nullptr) continue;
    Surroundings around;
    around.named = false;
    around.config = entry.config;
    around.config_path = folder.path(name + "/config.json");
    const bool transformer = std::string_view(slot).substr(0, 11) == "transformer";
    if (transformer) declare_partition(around, folder, base, slot, official, modular);
    add(entry.source, folder.path(name), around);
  }
}

bool Assembler::add_repository(const Folder& folder) {
  const size_t before = files_.components.size();
  const size_t left_out = other_partition_.size();
  for (const char* base : {"", "FL2VA/", "Ref2VA/"}) {
    const size_t first = files_.components.size();
    add_base(folder, base);
    // The partitions of a release repeat the shared components: the first copy counts.
    std::vector<Component>& all = files_.components;
    for (size_t i = first; i < all.size();) {
      bool repeated = false;
      for (size_t j = before; j < first; ++j) {
        repeated = repeated ||
                   (all[j].role == all[i].role && (all[i].role != Role::dit || all[j].partition == all[i].partition));
      }
      if (repeated)
        all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
      else
        ++i;
    }
  }
  return files_.components.size() > before || other_partition_.size() > left_out;
}

void Assembler::read_defaults(const Folder& folder, const std::string& base, const Json& official,
                              const Json& modular) {
  const auto take = [&](const Json& object) {
    if (!object.is_object()) return;
    for (const auto& [key, value] : object.members()) files_.defaults.set(key, value);
  };
  const auto take_shift = [&](const char* key, const Json* value) {
    if (value != nullptr && value->is_number()) files_.defaults.set(key, *value);
  };
  const Json video = folder.json(base + "scheduler/scheduler_config.json");
  const Json audio = folder.json(base + "audio_scheduler/scheduler_config.json");
  take_shift("video_shift", video.find("shift"));
  take_shift("audio_shift", audio.find("shift"));
  if (const Json* shifts = official.find("sigma_shift_scales")) {
    take_shift("video_shift", shifts->find("video"));
    take_shift("audio_shift", shifts->find("audio"));
  }
  if (const Json* schedule = official.find("base_schedule")) files_.defaults.set("base_schedule", *schedule);
  if (const Json* own = modular.find("h3_defaults")) take(*own);
  take(folder.json(base + "h3.json"));
}

}  // namespace h3
