#include "model/text/dims.h"

#include <cmath>

#include "base/error.h"

namespace h3::text {
namespace {

constexpr int kReleaseTap = 50;

const TensorInfo& need(const Component& component, const std::string& name) {
  const TensorInfo* info = component.source->find(component.prefix + name);
  if (info == nullptr) fail(Code::data, "%s: conditioner without tensor %s", component.origin.c_str(), name.c_str());
  return *info;
}

// Rows of a matrix or length of a vector. Rows survive every storage format, columns do not.
int64_t rows_of(const Component& component, const std::string& name) {
  const TensorInfo& info = need(component, name);
  if (info.dims.empty() || info.dims[0] <= 0) {
    fail(Code::data, "%s: tensor %s has no rows", component.origin.c_str(), name.c_str());
  }
  return info.dims[0];
}

bool has(const Component& component, const std::string& name) {
  return component.source->find(component.prefix + name) != nullptr;
}

int64_t count_blocks(const Component& component, const std::string& prefix, const std::string& suffix) {
  int64_t n = 0;
  while (has(component, prefix + std::to_string(n) + suffix)) ++n;
  return n;
}

// Where the language and vision settings stand: config.json nests them, CMF keeps them flat.
const Json* section(const Json& config, const char* name) {
  const Json* nested = config.find(name);
  return nested != nullptr && nested->is_object() ? nested : &config;
}

// A value of the section itself or of the rope tables of older and newer configurations.
const Json* rope_value(const Json& section, const char* key) {
  if (const Json* value = section.find(key); value != nullptr && !value->is_null()) return value;
  for (const char* table : {"rope_parameters", "rope_scaling"}) {
    const Json* rope = section.find(table);
    const Json* value = rope != nullptr ? rope->find(key) : nullptr;
    if (value != nullptr && !value->is_null()) return value;
  }
  return nullptr;
}

[[noreturn]] void bad_dims(const Component& component, const char* what, int64_t total, int64_t part) {
  fail(Code::data, "%s: %s: %lld is not a multiple of %lld", component.origin.c_str(), what,
       static_cast<long long>(total), static_cast<long long>(part));
}

void read_sections(const Component& component, const Json* list, LanguageDims& dims) {
  const int64_t slots = dims.head_dim / 2;
  if (list != nullptr) {
    if (!list->is_array() || list->size() != 3) {
      fail(Code::data, "%s: mrope_section has to be three numbers", component.origin.c_str());
    }
    for (size_t i = 0; i < 3; ++i) dims.sections[i] = list->at(i).as_int();
  } else if (slots != 64) {
    fail(Code::data, "%s: head_dim %lld is not the release's 128 and config.json states no mrope_section",
         component.origin.c_str(), static_cast<long long>(dims.head_dim));
  }
  if (dims.sections[0] + dims.sections[1] + dims.sections[2] != slots) {
    fail(Code::data, "%s: mrope_section [%lld, %lld, %lld] does not add up to half of head_dim %lld",
         component.origin.c_str(), static_cast<long long>(dims.sections[0]), static_cast<long long>(dims.sections[1]),
         static_cast<long long>(dims.sections[2]), static_cast<long long>(dims.head_dim));
  }
}

}  // namespace

Names detect_names(const Component& component) {
  Names names;
  bool found = false;
  for (const char* root : {"model.language_model.", "language_model.", "model.", "te."}) {
    if (!has(component, std::string(root) + "layers.0.input_layernorm.weight")) continue;
    names.language = root;
    found = true;
    break;
  }
  if (!found) {
    fail(Code::data, "%s: no language model in the conditioner (no layers.0.input_layernorm.weight)",
         component.origin.c_str());
  }
  for (const char* root : {"model.visual.", "visual.", "vis."}) {
    if (!has(component, std::string(root) + "pos_embed.weight")) continue;
    names.vision = root;
    names.compact = has(component, names.vision + "patch_embed.weight");
    break;
  }
  return names;
}

LanguageDims language_dims(const Component& component, const Names& names) {
  const std::string layer = names.language + "layers.0.";
  LanguageDims dims;
  dims.hidden = rows_of(component, layer + "input_layernorm.weight");
  dims.layers = count_blocks(component, names.language + "layers.", ".input_layernorm.weight");
  dims.head_dim = rows_of(component, layer + "self_attn.q_norm.weight");
  dims.ffn = rows_of(component, layer + "mlp.gate_proj.weight");
  dims.vocab = rows_of(component, names.language + "embed_tokens.weight");
  const int64_t query = rows_of(component, layer + "self_attn.q_proj.weight");
  const int64_t kv = rows_of(component, layer + "self_attn.k_proj.weight");
  if (dims.head_dim % 2 != 0) bad_dims(component, "head_dim", dims.head_dim, 2);
  if (query % dims.head_dim != 0) bad_dims(component, "q_proj rows", query, dims.head_dim);
  if (kv % dims.head_dim != 0) bad_dims(component, "k_proj rows", kv, dims.head_dim);
  dims.heads = query / dims.head_dim;
  dims.kv_heads = kv / dims.head_dim;
  if (dims.heads % dims.kv_heads != 0) bad_dims(component, "query heads", dims.heads, dims.kv_heads);

  const Json& config = *section(component.config, "text_config");
  if (const Json* eps = config.find("rms_norm_eps")) dims.eps = static_cast<float>(eps->as_double());
  if (const Json* theta = rope_value(config, "rope_theta")) dims.theta = theta->as_double();
  read_sections(component, rope_value(config, "mrope_section"), dims);
  return dims;
}

VisionDims vision_dims(const Component& component, const Names& names) {
  VisionDims dims;
  dims.hidden = rows_of(component, names.patch() + "bias");
  dims.depth = count_blocks(component, names.vision + "blocks.", ".norm1.weight");
  dims.ffn = rows_of(component, names.vision + "blocks.0.mlp.linear_fc1.bias");
  dims.out = rows_of(component, names.vision + "merger.linear_fc2.bias");
  const int64_t positions = rows_of(component, names.vision + "pos_embed.weight");
  dims.side = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(positions))));
  if (dims.side * dims.side != positions || dims.side < 2) {
    fail(Code::data, "%s: the vision position table has %lld rows; expected a square", component.origin.c_str(),
         static_cast<long long>(positions));
  }
  // Head count and taps leave no trace in the shapes: config.json, else the released towers.
  const Json& config = *section(component.config, "vision_config");
  const int64_t stored_mergers = count_blocks(component, names.deepstack(), ".norm.weight");
  const Json* heads = config.find("num_heads");
  const Json* taps = config.find("deepstack_visual_indexes");
  dims.heads = heads != nullptr ? heads->as_int() : dims.hidden == 1152 || dims.hidden == 1024 ? 16 : 0;
  if (taps != nullptr) {
    for (const Json& tap : taps->items()) dims.taps.push_back(tap.as_int());
  } else if (dims.depth == 27) {
    dims.taps = {8, 16, 24};
  } else if (dims.depth == 24) {
    dims.taps = {5, 11, 17};
  }
  if (dims.heads <= 0 || (taps == nullptr && dims.taps.empty())) {
    fail(Code::data,
         "%s: a vision tower of width %lld and depth %lld is none of the released ones; "
         "config.json beside it has to state num_heads and deepstack_visual_indexes",
         component.origin.c_str(), static_cast<long long>(dims.hidden), static_cast<long long>(dims.depth));
  }
  if (dims.hidden % dims.heads != 0) bad_dims(component, "vision width", dims.hidden, dims.heads);
  dims.head_dim = dims.hidden / dims.heads;
  if (dims.head_dim % 4 != 0) bad_dims(component, "vision head_dim", dims.head_dim, 4);
  int64_t last = -1;
  for (const int64_t tap : dims.taps) {
    if (tap <= last || tap >= dims.depth) {
      fail(Code::data, "%s: DeepStack tap %lld; expected ascending indices below the depth %lld",
           component.origin.c_str(), static_cast<long long>(tap), static_cast<long long>(dims.depth));
    }
    last = tap;
  }
  if (static_cast<int64_t>(dims.taps.size()) != stored_mergers) {
    fail(Code::data, "%s: %lld DeepStack mergers for %zu taps", component.origin.c_str(),
         static_cast<long long>(stored_mergers), dims.taps.size());
  }
  return dims;
}

int resolve_tap(int asked, const ModelFiles& files, const Component& component, int64_t layers) {
  int64_t tap = asked;
  const char* from = "--te-layers";
  for (const Json* table : {&files.defaults, &component.config}) {
    const Json* stated = tap == 0 ? table->find("text_encoder_layer") : nullptr;
    if (stated == nullptr) continue;
    tap = stated->as_int();
    from = "the model's own settings";
  }
  if (tap == 0 && (layers == kReleaseTap || layers == 64)) {
    tap = kReleaseTap;
    from = "the release";
  }
  if (tap == 0) {
    fail(Code::usage, "%s: a conditioner of %lld layers does not say which one H3 reads; pass --te-layers 1..%lld",
         component.origin.c_str(), static_cast<long long>(layers), static_cast<long long>(layers));
  }
  if (tap < 1 || tap > layers) {
    fail(Code::usage, "conditioner layer %lld (from %s) does not exist; %s has 1..%lld", static_cast<long long>(tap),
         from, component.origin.c_str(), static_cast<long long>(layers));
  }
  return static_cast<int>(tap);
}

}  // namespace h3::text
