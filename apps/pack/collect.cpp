#include "apps/pack/collect.h"

#include <algorithm>
#include <map>

#include "apps/pack/comfy_pack.h"
#include "base/error.h"
#include "model/dit/export.h"
#include "model/text/clip_proj.h"
#include "model/text/dims.h"

namespace h3 {
namespace {

double number_or(const Json& json, const char* key, double otherwise) {
  const Json* value = json.find(key);
  return value != nullptr && value->is_number() ? value->as_double() : otherwise;
}

// The tensors of a container as they are stored: what a pack copies. Names, shapes and bytes are the file's; `classes`
// tells the policy what each one is.
std::vector<ExportTensor> stored_tensors(const Component& component, const Exported& classes) {
  std::map<std::string, const ExportTensor*> known;
  for (const ExportTensor& tensor : classes.tensors) known.emplace(tensor.name, &tensor);
  std::vector<ExportTensor> out;
  const auto shared = std::make_shared<const Component>(component);
  for (const TensorInfo& info : component.source->tensors()) {
    const auto found = known.find(info.name);
    if (found == known.end()) continue;  // left out, or of another program
    ExportTensor tensor = *found->second;
    tensor.dims = info.dims;
    const TensorInfo* stored = &info;
    tensor.rows = [shared, stored] {
      const WeightBinder binder(*shared);
      const StoredMatrix matrix = binder.matrix(stored);
      MatrixSource rows;
      rows.name = stored->name;
      rows.append(matrix, 0, matrix.rows);
      return rows;
    };
    out.push_back(std::move(tensor));
  }
  return out;
}

class Collector {
 public:
  Collector(const ModelFiles& files, const PackOptions& options, ThreadPool& pool, Log& log)
      : files_(files), options_(options), pool_(pool), log_(log) {}

  PackContents run() {
    for (const Component& component : files_.components) add(component);
    if (out_.tensors.empty()) {
      fail(Code::usage, "pack: nothing to pack: the files hold no component, or all were left out");
    }
    if (!options_.adapters.empty() && out_.dit == nullptr) {
      fail(Code::usage, "pack: an adapter changes the transformer, and the pack has none");
    }
    std::sort(out_.tensors.begin(), out_.tensors.end(),
              [](const PackTensor& a, const PackTensor& b) { return a.tensor.name < b.tensor.name; });
    return std::move(out_);
  }

 private:
  void add(const Component& component) {
    const PackParts& parts = options_.parts;
    const VaeExportOptions video{parts.video_decoder, parts.video_encoder};
    const VaeExportOptions audio{parts.audio_decoder, parts.audio_encoder};
    switch (component.role) {
      case Role::dit:
        if (parts.dit) add_dit(component);
        break;
      case Role::conditioner:
        if (parts.conditioner) add_conditioner(component);
        break;
      case Role::clip_proj:
        if (parts.conditioner) add_clip_proj(component);
        break;
      case Role::video_vae:
        if (video.decoder || video.encoder) take(component, export_video_vae(component, video));
        break;
      case Role::audio_vae:
        if (audio.decoder || audio.encoder) take(component, export_audio_vae(component, audio));
        break;
      case Role::adapter:
      case Role::unknown: fail(Code::usage, "%s: not a component of a model", component.origin.c_str());
    }
  }

  void add_dit(const Component& component) {
    if (dit_ != nullptr) {
      if (dit_->source == component.source) return;  // one transformer in both slots
      fail(Code::usage, "pack: a CMF holds one transformer, the files have two: %s and %s; choose with --partition",
           dit_->origin.c_str(), component.origin.c_str());
    }
    dit_ = &component;
    out_.dit = std::make_shared<DitPack>(component, options_, pool_, log_);
    const size_t first = out_.tensors.size();
    const dit::DitExportOptions usual;
    take(component, out_.dit->exported(number_or(files_.defaults, "video_shift", usual.video_shift),
                                       number_or(files_.defaults, "audio_shift", usual.audio_shift)));
    for (size_t i = first; i < out_.tensors.size() && !options_.adapters.empty(); ++i) {
      PackTensor& t = out_.tensors[i];
      const DitPack* const owner = out_.dit.get();
      const std::string name = t.tensor.name;
      if (owner->merge_of(name) != nullptr) t.merge = [owner, name] { return owner->merge_of(name); };
    }
    out_.notes.insert(out_.notes.end(), out_.dit->notes().begin(), out_.dit->notes().end());
  }

  void add_conditioner(const Component& component) {
    const text::Names names = text::detect_names(component);
    const Component* const clip_proj = files_.find(Role::clip_proj);
    const int fitted = clip_proj != nullptr ? text::clip_proj_tap(*clip_proj) : 0;
    const int asked = options_.te_layers > 0 ? options_.te_layers : fitted;
    out_.tap = text::resolve_tap(asked, files_, component, text::language_dims(component, names).layers);
    take(component, export_conditioner(component, {out_.tap, options_.parts.vision}));
  }

  void add_clip_proj(const Component& component) {
    if (const Component* const encoder = files_.find(Role::conditioner)) {
      const int64_t hidden = text::language_dims(*encoder, text::detect_names(*encoder)).hidden;
      text::check_clip_proj_width(component, text::bind_clip_proj(component).in, hidden);
    }
    take(component, export_clip_proj(component));
  }

  void take(const Component& component, Exported exported) {
    const bool stored = component.spelling == Spelling::cmf;
    if (stored) exported.tensors = stored_tensors(component, exported);
    for (ExportTensor& tensor : exported.tensors) {
      const std::optional<Format> wanted = options_.policy.format_of(tensor, stored);
      const Format format = wanted ? *wanted : tensor.rows().format();
      if (const std::string refusal = pack_refusal(options_, format); !refusal.empty()) {
        fail(Code::usage, "pack: tensor '%s': %s", tensor.name.c_str(), refusal.c_str());
      }
      out_.tensors.push_back({std::move(tensor), format, {}});
    }
    for (auto& config : exported.configs) out_.configs.push_back(std::move(config));
  }

  const ModelFiles& files_;
  const PackOptions& options_;
  ThreadPool& pool_;
  Log& log_;
  PackContents out_;
  const Component* dit_ = nullptr;
};

}  // namespace

PackContents collect(const ModelFiles& files, const PackOptions& options, ThreadPool& pool, Log& log) {
  return Collector(files, options, pool, log).run();
}

}  // namespace h3
