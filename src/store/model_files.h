// From whatever files the user named to components with roles. Roles are recognised from tensor names and shapes, never
// from file names; what the tensors cannot tell (partition, QKV row order) follows design: declared, else the
// container's convention, else the flags; an assumed value is recorded as assumed.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "store/tensor_source.h"

namespace h3 {

enum class Role : uint8_t { dit, conditioner, video_vae, audio_vae, clip_proj, adapter, unknown };
const char* name_of(Role role);

enum class Spelling : uint8_t { diffusers, comfy, official, cmf, gguf };
const char* name_of(Spelling spelling);

enum class QkvOrder : uint8_t { contiguous, interleaved };
enum class Partition : uint8_t { fl2va, ref2va };

struct Component {
  Role role = Role::unknown;
  Spelling spelling = Spelling::comfy;
  std::shared_ptr<TensorSource> source;
  Json config;         // config.json beside the weights, or the container's; null when absent
  std::string origin;  // path as the user knows it
  QkvOrder qkv_order = QkvOrder::contiguous;
  Partition partition = Partition::fl2va;
  std::string qkv_order_from,
      partition_from;  // "declared by model_index.json", "assumed: ComfyUI files are contiguous", "--qkv-order"
  std::string prefix;  // stripped from tensor names ("model.diffusion_model.")
};

// Where tokenizer data was found; texts are file contents, empty when absent.
struct TokenizerFiles {
  std::string origin;
  std::string tokenizer_json, vocab_json, merges_txt, tokenizer_config_json;
};

struct ModelFiles {
  std::vector<Component> components;
  std::optional<TokenizerFiles> tokenizer;
  Json defaults;  // a demo's or container's own defaults (size, frames, steps, tap ...), null when absent
  const Component* find(Role role) const;
};

struct OpenOptions {
  std::vector<std::string> paths;  // files and folders, any mix
  std::optional<QkvOrder> qkv_order;
  std::optional<Partition> partition;
  std::string tokenizer;  // --tokenizer
};

ModelFiles open_model_files(const OpenOptions& options);

}  // namespace h3
