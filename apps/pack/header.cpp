#include "apps/pack/header.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"

namespace h3 {
namespace {

int64_t int_or(const Json& json, const char* key, int64_t otherwise) {
  const Json* value = json.find(key);
  return value != nullptr && value->is_number() ? value->as_int() : otherwise;
}

// All numbers describe the conditioner; zeros in a pack without one.
Json arch_of(const PackContents& contents) {
  Json te;
  for (const auto& [name, config] : contents.configs) {
    if (name == "te.config_json") te = config;
  }
  Json layers = Json::array();
  for (int64_t i = 0; i < int_or(te, "num_hidden_layers", 0); ++i) layers.push("FullAttention");
  const Json* eps = te.find("rms_norm_eps");
  Json arch = Json::object();
  arch.set("arch_name", "minimax-h3-av").set("hidden_size", int_or(te, "hidden_size", 0));
  arch.set("intermediate_size", int_or(te, "intermediate_size", 0))
      .set("num_layers", int_or(te, "num_hidden_layers", 0));
  arch.set("num_attention_heads", int_or(te, "num_attention_heads", 0));
  arch.set("num_kv_heads", int_or(te, "num_key_value_heads", 0)).set("head_dim", int_or(te, "head_dim", 0));
  arch.set("vocab_size", int_or(te, "vocab_size", 0)).set("layer_types", layers);
  arch.set("rms_norm_eps", eps != nullptr ? *eps : Json(1e-6)).set("norm_style", "qwen");
  arch.set("rope_theta", 10000.0).set("tie_word_embeddings", false).set("partial_rotary_factor", 1.0);
  arch.set("max_position_embeddings", 262144).set("linear_conv_kernel_dim", 0);
  return arch.set("linear_num_key_heads", 0).set("linear_num_value_heads", 0);
}

const char* quant_type(const std::string& summary) {
  return summary == "q8" || summary == "q8_2f" ? "Q8_ROW" : "Q4_BLOCK";  // what readers of the format expect; a hint
}

Json provenance_of(const ModelFiles& files, const PackOptions& options) {
  Json components = Json::object();
  Json paths = Json::array();
  std::vector<std::string> seen;
  std::vector<std::pair<std::string, std::string>> roles;
  for (const Component& component : files.components) {
    roles.emplace_back(name_of(component.role), name_of(component.spelling));
    if (std::find(seen.begin(), seen.end(), component.origin) == seen.end()) seen.push_back(component.origin);
  }
  std::sort(roles.begin(), roles.end());
  for (const auto& [role, spelling] : roles) components.set(role, spelling);
  for (const std::string& path : seen) paths.push(path);
  Json sources = Json::object();
  if (!options.adapters.empty()) {
    std::string adapters;
    for (const auto& [path, strength] : options.adapters) {
      adapters += (adapters.empty() ? "" : ", ") + path.substr(path.find_last_of('/') + 1);
    }
    sources.set("lora", adapters).set("lora_scale", static_cast<double>(options.adapters[0].second));
  }
  sources.set("paths", paths);
  Json json = Json::object();
  json.set("components", components).set("pipeline", "minimax-h3").set("quant", options.policy.summary());
  return json.set("sources", sources);
}

// What only this program reads: the partition, the model's own defaults, strong hashes.
Json own_fields(const ModelFiles& files, const std::vector<CmfEntry>& entries, const std::vector<std::string>& strong) {
  Json own = Json::object();
  std::string partitions;
  for (const Component& component : files.components) {
    if (component.role != Role::dit || component.partition_from.starts_with("assumed")) continue;
    partitions += (partitions.empty() ? "" : "+") + std::string(name_of(component.partition));
  }
  if (!partitions.empty()) own.set("partition", partitions);
  if (files.defaults.is_object()) {
    Json defaults = Json::object();
    for (const auto& [key, value] : files.defaults.members()) {
      if (key != "text_encoder_layer") defaults.set(key, value);  // a pack holds the layers up to it
    }
    own.set("defaults", defaults);
  }
  Json hashes = Json::object();
  for (size_t i = 0; i < entries.size() && StrongHash::available(); ++i) hashes.set(entries[i].name, strong[i]);
  if (hashes.size() > 0) own.set("xxh3_128", hashes);
  return own;
}

}  // namespace

std::string tokenizer_section(const ModelFiles& files) {
  if (!files.tokenizer) return "";
  const TokenizerFiles& tokenizer = *files.tokenizer;
  if (!tokenizer.tokenizer_json.empty()) return tokenizer.tokenizer_json;
  if (tokenizer.vocab_json.empty() || tokenizer.merges_txt.empty()) return "";
  Json merges = Json::array();
  std::istringstream lines(tokenizer.merges_txt);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty() && !line.starts_with("#version")) merges.push(line);
  }
  Json model = Json::object();
  model.set("type", "BPE").set("vocab", Json::parse(tokenizer.vocab_json, tokenizer.origin + "/vocab.json"));
  model.set("merges", merges);
  return Json::object({{"version", "1.0"}, {"added_tokens", Json::array()}, {"model", model}}).dump();
}

std::string pack_header(const ModelFiles& files, const PackContents& contents, const PackOptions& options,
                        const CmfSections& sections, const std::vector<CmfEntry>& entries,
                        const std::vector<std::string>& strong) {
  Json header = Json::object();
  header.set("format", "cmf").set("version", 2).set("arch", arch_of(contents));
  header.set("quant_type", quant_type(options.policy.summary())).set("provenance", provenance_of(files, options));
  if (!sections.vocab.empty() && files.tokenizer && !files.tokenizer->tokenizer_config_json.empty()) {
    header.set("tokenizer_config",
               Json::parse(files.tokenizer->tokenizer_config_json, files.tokenizer->origin + "/tokenizer_config.json"));
  }
  const Json hashes = cmf_section_hashes(sections);
  if (hashes.size() > 0) header.set("section_hashes", hashes);
  header.set("h3", own_fields(files, entries, strong));
  return header.dump();
}

}  // namespace h3
