// Dimensions of the conditioner: from tensor shapes, and from config.json where shapes cannot tell (spec
// conditioner 5.1, 6.1, 9).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "store/model_files.h"

namespace h3::text {

struct LanguageDims {
  int64_t hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  float eps = 1e-6f;
  double theta = 5e6;
  int64_t sections[3] = {24, 20, 20};  // rotary slots of the T, H, W axes; sum = head_dim / 2

  int64_t query() const { return heads * head_dim; }
  int64_t kv() const { return kv_heads * head_dim; }
};

struct VisionDims {
  int64_t hidden = 0, depth = 0, heads = 0, head_dim = 0, ffn = 0, out = 0;
  int64_t side = 0;           // the position table is side x side
  std::vector<int64_t> taps;  // vision blocks whose output feeds DeepStack, ascending
  float eps = 1e-6f;
  double theta = 1e4;
};

// How one file spells the tensor names, behind the component's prefix.
struct Names {
  std::string language;  // "model.language_model.", "model.", "te."
  std::string vision;    // "model.visual.", "visual.", "vis."; empty = no tower in the file
  bool compact = false;  // CMF: patch_embed.weight [D, 1536] and deepstack.{k} instead of the HF names
  std::string patch() const { return vision + (compact ? "patch_embed." : "patch_embed.proj."); }
  std::string deepstack() const { return vision + (compact ? "deepstack." : "deepstack_merger_list."); }
};

// Error(data) when the file has no language model under any known spelling.
Names detect_names(const Component& component);
LanguageDims language_dims(const Component& component, const Names& names);
VisionDims vision_dims(const Component& component, const Names& names);

// hidden_states[tap]: asked for, else stated by the model, else 50 for the 50- and 64-layer release. Error(usage).
int resolve_tap(int asked, const ModelFiles& files, const Component& component, int64_t layers);

}  // namespace h3::text
