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
const char* name_of(QkvOrder order);
const char* name_of(Partition partition);

struct Component {
  Role role = Role::unknown;
  Spelling spelling = Spelling::comfy;
  std::shared_ptr<TensorSource> source;  // two components share it when one transformer serves both partitions
  Json config;                           // config.json beside the weights, or the container's; null when absent
  std::string origin;                    // path as the user knows it
  QkvOrder qkv_order = QkvOrder::contiguous;
  Partition partition = Partition::fl2va;
  // Where the two came from: "declared by PATH", "assumed: ...", "--qkv-order". Empty for other roles than dit.
  std::string qkv_order_from, partition_from;
  std::string prefix;       // stripped from tensor names ("model.diffusion_model.")
  std::string unsupported;  // why it cannot be run; only ever set under OpenOptions::inspect
};

struct ModelFiles {
  std::vector<Component> components;
  std::optional<TokenizerFiles> tokenizer;
  // What the model says about its own use, null when it says nothing. From scheduler configs and model_index.json:
  // video_shift, audio_shift (numbers), base_schedule (array of sigmas of a distilled release). From "h3_defaults" of
  // modular_model_index.json, then h3.json beside it, kept as they are: text_encoder_layer (the tap), width, height,
  // frames, steps, seed, prompt, min_seconds, canvas_short_edge, canvas_max_pixels, reference_image_short_edge.
  Json defaults;
  const Component* find(Role role) const;  // the first; nullptr when absent
  const Component* find_dit(Partition partition) const;
};

struct OpenOptions {
  std::vector<std::string> paths;  // files and folders, any mix; none = the embedded demo
  std::optional<QkvOrder> qkv_order;
  std::optional<Partition> partition;
  std::string tokenizer;  // --tokenizer
  bool replace = false;   // for `pack`: of two files with one role the later counts, and takes the ClipProj with it
  bool inspect = false;   // for `info`: unknown and unsupported files, and roles given twice, are not errors
};

// Opens everything and gives roles. Error(io) for a missing path; Error(data) for damaged or unrecognised files, and
// for two files with the same role (a transformer per partition excepted), naming both; Error(usage) for a flag that
// contradicts what a file declares. Files inside a folder that are not part of a model are passed over.
ModelFiles open_model_files(const OpenOptions& options);

// What --tokenizer names: a folder, or a file in it. Error(data) when there is no tokenizer.
std::optional<TokenizerFiles> named_tokenizer(const std::string& given);

}  // namespace h3
