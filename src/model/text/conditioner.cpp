#include "model/text/conditioner.h"

#include <optional>

#include "base/context.h"
#include "base/error.h"
#include "model/text/clip_proj.h"
#include "model/text/language.h"
#include "model/text/presentation.h"
#include "model/text/tokenizer.h"
#include "model/text/vision.h"

namespace h3 {
namespace text {
namespace {

class QwenConditioner final : public Conditioner {
 public:
  QwenConditioner(Ops& ops, Tokenizer tokenizer, Compute compute, int tap)
      : ops_(ops), tokenizer_(std::move(tokenizer)), type_(activation_type(compute)), tap_(tap) {}

  void load(const Materials& materials, const LanguageDims& dims, const BoundLanguage& bound) {
    width_ = dims.hidden;
    language_.emplace(materials, dims, bound);
  }
  void load(const Materials& materials, const VisionDims& dims, const BoundVision& bound) {
    vision_.emplace(materials, dims, bound);
  }

  void load(const Component& clip_proj) {
    clip_proj_.emplace(ops_, clip_proj);
    check_clip_proj_width(clip_proj, clip_proj_->in(), width_);
  }

  bool has_vision() const override { return vision_.has_value(); }
  int tap() const override { return tap_; }
  int64_t width() const override { return clip_proj_ ? clip_proj_->out() : width_; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }

  Conditioning encode(const std::string& prompt, const std::vector<PromptMedia>& media,
                      const Control& control) override {
    for (const PromptMedia& item : media) {
      if (item.kind != PromptMedia::Kind::audio) check_vision();
    }
    return run(present(tokenizer_, prompt, media), control, {});
  }

  Conditioning run(const Presentation& presentation, const Control& control, const TextProbe& probe) override {
    const std::vector<VisionRun> runs = find_vision_runs(presentation.ids, tokenizer_.special(), presentation.vision);
    Tensor features;  // outlives both workspaces, which never exist at the same time
    Splice splice;
    if (!presentation.vision.empty()) {
      check_vision();
      int64_t tokens = 0;
      for (const VisionInput& input : presentation.vision) tokens += input.tokens();
      features = Tensor(ops_.device(), type_, {1 + vision_->deepstack_levels(), tokens, width_}, "vision features");
      vision_->forward(presentation.vision, features, control, probe);
      splice.features = features;
      splice.rows.resize(static_cast<size_t>(tokens));
      for (const VisionRun& run : runs) {
        for (int64_t i = 0; i < run.count; ++i) {
          splice.rows[static_cast<size_t>(run.feature + i)] = static_cast<int32_t>(run.row + i);
        }
      }
    }
    Conditioning out;
    out.embeds = language_->forward(presentation.ids, runs, splice, control, probe);
    if (clip_proj_) out.embeds = clip_proj_->project(out.embeds);
    out.rows = static_cast<int64_t>(presentation.ids.size());
    out.width = width();
    out.tags = presentation.tags;
    out.ids = presentation.ids;
    return out;
  }

 private:
  void check_vision() const {
    if (!vision_) {
      fail(Code::usage,
           "pictures need a conditioner with a vision tower and this one has none loaded; "
           "use a checkpoint with visual.* tensors or leave the pictures out");
    }
  }

  Ops& ops_;
  Tokenizer tokenizer_;
  DType type_;
  int tap_;
  int64_t width_ = 0;
  std::optional<LanguageModel> language_;
  std::optional<VisionTower> vision_;
  std::optional<ClipProj> clip_proj_;
};

// A tokenizer of another model gives plausible nonsense; config.json tells.
void check_pad_ids(const Component& component, const Tokenizer& tokenizer) {
  const struct {
    const char* key;
    int32_t id;
  } expected[] = {{"image_token_id", tokenizer.special().image_pad},
                  {"video_token_id", tokenizer.special().video_pad},
                  {"vision_start_token_id", tokenizer.special().vision_start},
                  {"vision_end_token_id", tokenizer.special().vision_end}};
  for (const auto& row : expected) {
    const Json* stated = component.config.find(row.key);
    if (stated == nullptr || !stated->is_integer() || stated->as_int() == row.id) continue;
    fail(Code::data, "%s: config.json says %s %lld, the tokenizer says %d; they belong to different models",
         component.origin.c_str(), row.key, static_cast<long long>(stated->as_int()), row.id);
  }
}

}  // namespace
}  // namespace text

// Every released projection was fitted on the small encoder's own tokens (spec conditioner 8.2).
AddedSet added_set(const ModelFiles& files) {
  return files.find(Role::clip_proj) != nullptr ? AddedSet::stock : AddedSet::h3;
}

std::unique_ptr<Conditioner> load_conditioner(Ops& ops, const ModelFiles& files, const ConditionerOptions& options) {
  const Component* component = files.find(Role::conditioner);
  if (component == nullptr) fail(Code::usage, "no prompt conditioner (Qwen3-VL text encoder) among the model files");
  if (!files.tokenizer) {
    fail(Code::usage, "no tokenizer beside %s; pass a folder with tokenizer.json or merges.txt with --tokenizer",
         component->origin.c_str());
  }
  const Component* const clip_proj = files.find(Role::clip_proj);
  Tokenizer tokenizer(*files.tokenizer, added_set(files));
  for (const std::string& note : tokenizer.notes()) ops.context().log.write(LogLevel::warn, "%s", note.c_str());
  text::check_pad_ids(*component, tokenizer);

  const text::Names names = text::detect_names(*component);
  const text::LanguageDims dims = text::language_dims(*component, names);
  const int fitted = clip_proj != nullptr ? text::clip_proj_tap(*clip_proj) : 0;
  const int tap = text::resolve_tap(options.tap > 0 ? options.tap : fitted, files, *component, dims.layers);
  WeightBinder binder(*component);
  const text::BoundLanguage language = text::bind_language(binder, names, dims, tap);
  std::optional<text::VisionDims> vision_dims;
  std::optional<text::BoundVision> vision;
  if (!names.vision.empty() && options.vision) {
    vision_dims = text::vision_dims(*component, names);
    vision = text::bind_vision(binder, names, *vision_dims);
    if (vision_dims->out != dims.hidden) {
      binder.problem(strf("the vision tower gives %lld features, the language model takes %lld",
                          static_cast<long long>(vision_dims->out), static_cast<long long>(dims.hidden)));
    }
  } else if (!names.vision.empty()) {
    binder.ignore_prefix(names.vision);
  }
  binder.finish();

  const text::Materials materials{ops, binder, options.compute, options.control, options.resident_layers};
  auto conditioner = std::make_unique<text::QwenConditioner>(ops, std::move(tokenizer), options.compute, tap);
  conditioner->load(materials, dims, language);
  if (vision) conditioner->load(materials, *vision_dims, *vision);
  if (clip_proj != nullptr) conditioner->load(*clip_proj);
  return conditioner;
}

}  // namespace h3
