#include "store/llama_names.h"

#include <cstdlib>
#include <string_view>

namespace h3 {
namespace {

// A name is a stem and ".weight" or ".bias" (spec conditioner 9).
struct Stem {
  std::string_view from, to;
};
constexpr Stem kWhole[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
    {"v.patch_embd", "visual.patch_embed.proj"},
    {"v.position_embd", "visual.pos_embed"},
    {"v.post_ln", "visual.merger.norm"},
    {"mm.0", "visual.merger.linear_fc1"},
    {"mm.2", "visual.merger.linear_fc2"},
};

constexpr Stem kLayer[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

constexpr Stem kVisionBlock[] = {
    {"attn_qkv", "attn.qkv"}, {"attn_out", "attn.proj"},    {"ln1", "norm1"},
    {"ln2", "norm2"},         {"ffn_up", "mlp.linear_fc1"}, {"ffn_down", "mlp.linear_fc2"},
};

constexpr Stem kMerger[] = {{"norm", "norm"}, {"fc1", "linear_fc1"}, {"fc2", "linear_fc2"}};

constexpr std::string_view kDeepstack = "visual.deepstack_merger_list.";

// Stems behind a number: FROM "3." STEM.
struct Group {
  std::string_view from, to;
  const Stem* begin;
  const Stem* end;
};
constexpr Group kGroups[] = {
    {"blk.", "model.layers.", std::begin(kLayer), std::end(kLayer)},
    {"v.blk.", "visual.blocks.", std::begin(kVisionBlock), std::end(kVisionBlock)},
    {"v.deepstack.", kDeepstack, std::begin(kMerger), std::end(kMerger)},
};

// Length of the decimal number at the start of the text.
size_t digits_of(std::string_view text) {
  const size_t end = text.find_first_not_of("0123456789");
  return end == text.npos ? text.size() : end;
}

}  // namespace

bool is_llama_name(const std::string& name) { return name == "token_embd.weight" || name == "v.patch_embd.weight"; }

std::string canonical_llama_name(const std::string& name) {
  size_t dot = name.rfind('.');
  // The second half of the patch embedding is called v.patch_embd.weight.1.
  if (dot != name.npos && name.compare(dot, name.npos, ".1") == 0 && dot > 0) dot = name.rfind('.', dot - 1);
  if (dot == name.npos) return name;
  const std::string_view stem = std::string_view(name).substr(0, dot);
  const std::string ending = name.substr(dot);
  for (const Stem& row : kWhole) {
    if (stem == row.from) return std::string(row.to) + ending;
  }
  for (const Group& group : kGroups) {
    if (!stem.starts_with(group.from)) continue;
    const std::string_view rest = stem.substr(group.from.size());
    const size_t digits = digits_of(rest);
    if (digits == 0 || digits >= rest.size() || rest[digits] != '.') continue;
    for (const Stem* row = group.begin; row != group.end; ++row) {
      if (rest.substr(digits + 1) == row->from) {
        return std::string(group.to) + std::string(rest.substr(0, digits + 1)) + std::string(row->to) + ending;
      }
    }
  }
  return name;
}

int deepstack_number(const std::string& name) {
  if (!std::string_view(name).starts_with(kDeepstack)) return -1;
  const std::string rest = name.substr(kDeepstack.size());
  const size_t digits = digits_of(rest);
  return digits == 0 || digits > 4 ? -1 : std::atoi(rest.c_str());
}

std::string with_deepstack_number(const std::string& name, int number) {
  const std::string rest = name.substr(kDeepstack.size());
  return std::string(kDeepstack) + std::to_string(number) + rest.substr(digits_of(rest));
}

}  // namespace h3
