#include "apps/pack/policy.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "base/nearest.h"
#include "quant/encode.h"

namespace h3 {
namespace {

constexpr QuantLevel kLevels[] = {
    {"keep", {}},           {"f32", Format::f32},   {"f16", Format::f16},
    {"bf16", Format::bf16}, {"q8", Format::q8_row}, {"q8_2f", Format::q8_2f},
    {"q4tp", Format::q4tp}, {"q2tp", Format::q2tp}, {"nvfp4", Format::nvfp4},
};
constexpr const char* kDefaultLevel = "q4tp";

// What a rule may name: starts of the families of model/export.h.
constexpr const char* kFamilies[] = {
    "dit",
    "dit.attn",
    "dit.attn.qkv",
    "dit.attn.out",
    "dit.mlp",
    "dit.mlp.fc1",
    "dit.mlp.fc2",
    "dit.refiner",
    "dit.text",
    "dit.adaln",
    "te",
    "te.embed_tokens",
    "te.self_attn",
    "te.mlp",
    "te.mlp.gate_proj",
    "te.mlp.up_proj",
    "te.mlp.down_proj",
    "vis",
    "vvae",
    "vvae.attn",
    "vvae.ff",
    "vvae.out",
    "vvae.enc",
    "avae",
    "avae.dec",
    "avae.enc",
};

const QuantLevel& level_named(const std::string& name) {
  for (const QuantLevel& level : kLevels) {
    if (name == level.name) return level;
  }
  fail(Code::usage, "--quant: \"%s\" is not a format, give %s", name.c_str(), quant_level_names().c_str());
}

bool covers(const std::string& rule, const std::string& family) {
  return family.compare(0, rule.size(), rule) == 0 && (family.size() == rule.size() || family[rule.size()] == '.');
}

// The one matrix of an MLP that q2tp is for; the others of that level get q4tp (spec formats A.6).
bool first_of_mlp(const std::string& name) {
  for (const char* end : {"mlp.fc1.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight", "ff.w1.weight"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

// A format that holds the shape (spec formats A.7).
Format fitting(Format wanted, const ExportTensor& tensor) {
  if (tensor.dims.size() != 2) return wanted == Format::f32 || wanted == Format::bf16 ? wanted : Format::f16;
  if (wanted == Format::q2tp && !first_of_mlp(tensor.name)) wanted = Format::q4tp;
  // Files of this format keep everything outside the blocks, and shapes that it would have to pad (spec formats C.2).
  const bool in_block = tensor.family.starts_with("dit.attn") || tensor.family.starts_with("dit.mlp");
  const bool whole = tensor.dims[0] % 16 == 0 && tensor.dims[1] % 16 == 0;
  if (wanted == Format::nvfp4 && tensor.family.starts_with("dit.") && !(in_block && whole)) return Format::bf16;
  if (encode_refusal(wanted, tensor.dims[0], tensor.dims[1]).empty()) return wanted;
  return Format::q8_row;
}

}  // namespace

std::string quant_level_names() {
  std::string text;
  for (const QuantLevel& level : kLevels) text += (text.empty() ? "" : ", ") + std::string(level.name);
  return text;
}

QuantPolicy QuantPolicy::parse(const std::string& text) {
  QuantPolicy policy;
  policy.text_ = text;
  std::string word;
  for (const char c : text + ",") {
    if (c != ',') {
      word += c;
      continue;
    }
    if (word.empty()) continue;
    const size_t equals = word.find('=');
    if (equals == std::string::npos) {
      policy.base_ = &level_named(word);
    } else {
      const std::string family = word.substr(0, equals);
      if (std::find(std::begin(kFamilies), std::end(kFamilies), family) == std::end(kFamilies)) {
        const std::vector<std::string> known(std::begin(kFamilies), std::end(kFamilies));
        fail(Code::usage, "--quant: there is no family \"%s\"%s", family.c_str(), suggestion(family, known).c_str());
      }
      policy.rules_.emplace_back(family, &level_named(word.substr(equals + 1)));
    }
    word.clear();
  }
  return policy;
}

const QuantLevel& QuantPolicy::level_of(const std::string& family, bool stored) const {
  const std::pair<std::string, const QuantLevel*>* best = nullptr;
  for (const auto& rule : rules_) {
    if (covers(rule.first, family) && (best == nullptr || rule.first.size() >= best->first.size())) best = &rule;
  }
  if (best != nullptr) return *best->second;
  if (base_ != nullptr) return *base_;
  return level_named(stored ? "keep" : kDefaultLevel);
}

std::optional<Format> QuantPolicy::format_of(const ExportTensor& tensor, bool stored) const {
  const QuantLevel& level = level_of(tensor.family, stored);
  if (!level.format) return std::nullopt;
  if (tensor.keep == Keep::exact || *level.format == Format::f32) return Format::f32;
  if (tensor.keep == Keep::half) return Format::f16;
  return fitting(*level.format, tensor);
}

std::string QuantPolicy::summary() const {
  if (!rules_.empty()) return "mixed";
  return base_ != nullptr ? base_->name : kDefaultLevel;
}

}  // namespace h3
