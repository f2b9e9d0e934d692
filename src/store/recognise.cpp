#include "store/recognise.h"

#include <algorithm>

#include "base/error.h"

namespace h3 {
namespace {

// A component has both markers behind one prefix. The first row that matches a role decides its spelling.
// Sources: spec formats C.1, F.2 (transformer), vae 2 (autoencoders), conditioner 9, formats G (ClipProj).
struct Rule {
  Role role;
  Spelling spelling;
  const char* marker;
  const char* companion;
};
constexpr Rule kRules[] = {
    {Role::dit, Spelling::comfy, "video_patch_proj.weight", "audio_patch_proj.weight"},
    {Role::dit, Spelling::diffusers, "proj_in.weight", "audio_proj_in.weight"},
    {Role::video_vae, Spelling::comfy, "decoder.transformer_blocks.0.scale1", "decoder.x_embedder.weight"},
    {Role::video_vae, Spelling::diffusers, "decoder.transformer_blocks.0.scale1", "decoder.proj_in.weight"},
    {Role::audio_vae, Spelling::comfy, "dec_in_proj.weight", "decoder.conv_pre.weight"},
    {Role::audio_vae, Spelling::diffusers, "dec_in_proj.weight", "decoder.conv_pre.bias"},
    {Role::conditioner, Spelling::diffusers, "model.language_model.embed_tokens.weight",
     "model.language_model.layers.0.self_attn.q_norm.weight"},
    {Role::conditioner, Spelling::comfy, "model.embed_tokens.weight", "model.layers.0.self_attn.q_norm.weight"},
    {Role::clip_proj, Spelling::comfy, "mean_in", "std_out"},
};

constexpr const char* kAdapterSuffixes[] = {
    ".lora_A.weight",    ".lora_B.weight",    ".lora_A.default.weight",
    ".lora_down.weight", ".lora_up.weight",   ".lora.down.weight",
    ".lora.up.weight",   "_lora.down.weight", "_lora.up.weight",
    ".lora_A",           ".lora_B",           ".diff",
    ".lokr_w1",          ".lokr_w2",          ".hada_w1_a",
};

// A transformer whose video head has more rows than one patch holds predicts several steps at once (spec dit 1.2).
std::string unsupported_head(const TensorSource& source, const Recognised& found) {
  const bool comfy = found.spelling == Spelling::comfy;
  const std::string head_name = found.prefix + (comfy ? "final_layer.video_out.weight" : "proj_out.weight");
  const TensorInfo* head = source.find(head_name);
  const TensorInfo* patch = source.find(found.prefix + (comfy ? "video_patch_proj.weight" : "proj_in.weight"));
  if (head == nullptr || patch == nullptr || head->dims.size() != 2 || patch->dims.size() != 2) return "";
  if (head->dims[0] <= patch->dims[1]) return "";
  return strf(
      "%s has %lld rows instead of %lld: this is a multi-step (PDD) head, which is not supported; use a "
      "checkpoint with one output per step",
      head_name.c_str(), static_cast<long long>(head->dims[0]), static_cast<long long>(patch->dims[1]));
}

}  // namespace

std::vector<Recognised> recognise(const TensorSource& source) {
  std::vector<Recognised> out;
  for (const Rule& rule : kRules) {
    for (const TensorInfo& info : source.tensors()) {
      if (!info.name.ends_with(rule.marker)) continue;
      const std::string prefix = info.name.substr(0, info.name.size() - std::string_view(rule.marker).size());
      if (!prefix.empty() && prefix.back() != '.') continue;
      if (source.find(prefix + rule.companion) == nullptr) continue;
      const bool known = std::any_of(out.begin(), out.end(),
                                     [&](const Recognised& r) { return r.role == rule.role && r.prefix == prefix; });
      if (known) continue;
      Recognised found{rule.role, rule.spelling, prefix, ""};
      if (rule.role == Role::dit) found.unsupported = unsupported_head(source, found);
      out.push_back(found);
    }
  }
  if (!out.empty()) return out;
  for (const TensorInfo& info : source.tensors()) {
    for (const char* suffix : kAdapterSuffixes) {
      if (info.name.ends_with(suffix)) return {{Role::adapter, Spelling::comfy, "", ""}};
    }
  }
  return {{Role::unknown, Spelling::comfy, "", ""}};
}

}  // namespace h3
