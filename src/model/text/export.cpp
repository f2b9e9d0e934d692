// The conditioner, its vision tower and ClipProj as CMF files hold them.
#include <memory>

#include "model/export.h"
#include "model/text/clip_proj.h"
#include "model/text/dims.h"
#include "model/text/language.h"
#include "model/text/vision.h"
#include "model/text/weights.h"

namespace h3 {
namespace text {
namespace {

// A bound component that lives as long as the tensors that read from it.
struct Origin {
  explicit Origin(const Component& from) : component(from), binder(component) {}
  Component component;
  WeightBinder binder;
};
using SharedOrigin = std::shared_ptr<const Origin>;

ExportTensor stored(const SharedOrigin& origin, const TensorInfo* info, const std::string& name,
                    std::vector<int64_t> dims, Keep keep, const std::string& family) {
  return {name, std::move(dims), keep, family, [origin, info, name] {
            const StoredMatrix matrix = origin->binder.matrix(info);
            MatrixSource source;
            source.name = name;
            source.append(matrix, 0, matrix.rows);
            return source;
          }};
}

// One table's tensors under a new prefix; `spelled` has the names to write (a table may exist in two spellings).
template <typename Owner, size_t kRows>
void add_rows(Exported& out, const SharedOrigin& origin, const Owner& bound,
              const WeightRow<Owner, Dim> (&spelled)[kRows], const std::string& prefix, const std::string& family,
              const Lengths& lengths) {
  for (const WeightRow<Owner, Dim>& row : spelled) {
    std::vector<int64_t> dims;
    for (const Dim dim : row.dims) {
      if (dim != Dim::none) dims.push_back(lengths(dim));
    }
    const std::string name = row.name;
    const bool matrix = (row.flags & kQuantise) != 0;
    const Keep keep = matrix ? Keep::quantised : dims.size() == 1 ? Keep::half : Keep::exact;
    std::string member = family;
    if (matrix) member += "." + name.substr(0, name.size() - std::string_view(".weight").size());
    out.tensors.push_back(stored(origin, bound.*row.field, prefix + name, std::move(dims), keep, member));
  }
}

Json text_config(const LanguageDims& d, int tap) {
  Json config = Json::object();
  config.set("final_norm", false).set("head_dim", d.head_dim).set("hidden_size", d.hidden);
  config.set("intermediate_size", d.ffn);
  if (d.sections[0] != 24 || d.sections[1] != 20 || d.sections[2] != 20) {  // of the release: not written by others
    config.set("mrope_section", Json::array({d.sections[0], d.sections[1], d.sections[2]}));
  }
  config.set("num_attention_heads", d.heads).set("num_hidden_layers", tap).set("num_key_value_heads", d.kv_heads);
  config.set("rms_norm_eps", decimal_of(d.eps)).set("rope_theta", d.theta).set("vocab_size", d.vocab);
  return config;
}

Json vision_config(const VisionDims& d) {
  Json taps = Json::array();
  for (const int64_t tap : d.taps) taps.push(tap);
  Json config = Json::object();
  config.set("deepstack_visual_indexes", taps).set("depth", d.depth).set("hidden_size", d.hidden);
  config.set("intermediate_size", d.ffn).set("num_heads", d.heads).set("out_hidden_size", d.out);
  config.set("patch_size", 16).set("spatial_merge_size", 2).set("temporal_patch_size", 2);
  return config;
}

void add_vision(Exported& out, const SharedOrigin& origin, const BoundVision& bound, const VisionDims& dims) {
  Lengths lengths{.vision = &dims};
  add_rows(out, origin, bound.stem, kCompactStem, "vis.", "vis", lengths);
  for (size_t i = 0; i < bound.blocks.size(); ++i) {
    add_rows(out, origin, bound.blocks[i], kBlock, "vis.blocks." + std::to_string(i) + ".", "vis", lengths);
  }
  lengths.norm = dims.hidden;
  add_rows(out, origin, bound.merger, kMerger, "vis.merger.", "vis.merger", lengths);
  lengths.norm = lengths(Dim::merged);
  for (size_t k = 0; k < bound.deepstack.size(); ++k) {
    add_rows(out, origin, bound.deepstack[k], kMerger, "vis.deepstack." + std::to_string(k) + ".", "vis.merger",
             lengths);
  }
  out.configs.emplace_back("vis.config_json", vision_config(dims));
}

}  // namespace
}  // namespace text

Exported export_conditioner(const Component& component, const TextExportOptions& options) {
  using namespace text;
  const auto origin = std::make_shared<Origin>(component);
  const Names names = detect_names(origin->component);
  const LanguageDims dims = language_dims(origin->component, names);
  const BoundLanguage bound = bind_language(origin->binder, names, dims, options.tap);
  const Lengths lengths{.language = &dims};
  Exported out;
  add_rows(out, origin, bound.embed, kEmbed, "te.", "te", lengths);
  for (size_t l = 0; l < bound.layers.size(); ++l) {
    add_rows(out, origin, bound.layers[l], kLayer, "te.layers." + std::to_string(l) + ".", "te", lengths);
  }
  out.configs.emplace_back("te.config_json", text_config(dims, options.tap));
  if (!names.vision.empty() && options.vision) {
    const VisionDims vision = vision_dims(origin->component, names);
    add_vision(out, origin, bind_vision(origin->binder, names, vision), vision);
  } else if (!names.vision.empty()) {
    origin->binder.ignore_prefix(names.vision);
  }
  origin->binder.finish();
  return out;
}

Exported export_clip_proj(const Component& component) {
  using namespace text;
  const auto origin = std::make_shared<Origin>(component);
  const BoundClipProj bound = bind_clip_proj(origin->component);
  Exported out;
  const auto add = [&](const TensorInfo* info, const std::string& name) {
    if (info != nullptr) out.tensors.push_back(stored(origin, info, name, info->dims, Keep::exact, "te.proj"));
  };
  for (const auto& row : kClipProj) add(bound.tensors.*row.field, std::string("te.proj.") + row.name);
  int64_t hidden = 0;
  for (size_t i = 0; i < bound.mlp.size(); ++i) {
    const std::string name = "te.proj.mlp." + std::to_string(2 * i);
    add(bound.mlp[i].weight, name + ".weight");
    add(bound.mlp[i].bias, name + ".bias");
    if (i == 0) hidden = bound.mlp[i].weight->dims[0];
  }
  Json config = Json::object();
  config.set("d_in", bound.in).set("d_out", bound.out).set("mlp", !bound.mlp.empty()).set("mlp_hidden", hidden);
  out.configs.emplace_back("te.proj.config_json", config);
  return out;
}

}  // namespace h3
