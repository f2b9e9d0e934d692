#include "pipeline/model_facts.h"

#include <algorithm>
#include <string_view>

#include "model/dit/layout.h"
#include "pipeline/prompt_lint.h"

namespace h3 {
namespace {

// Above this many weights a model computes in the precision it was released in; small ones can afford f32.
constexpr int64_t kReleaseSize = 1'000'000'000;

bool any_name(const Component* component, std::initializer_list<std::string_view> parts) {
  if (component == nullptr) return false;
  for (const TensorInfo& tensor : component->source->tensors()) {
    std::string_view name = tensor.name;
    if (name.substr(0, component->prefix.size()) == component->prefix) name.remove_prefix(component->prefix.size());
    for (const std::string_view part : parts) {
      if (name.substr(0, part.size()) == part) return true;
    }
  }
  return false;
}

int64_t weights_of(const Component& component) {
  int64_t total = 0;
  for (const TensorInfo& tensor : component.source->tensors()) {
    int64_t count = 1;
    for (const int64_t dim : tensor.dims) count *= dim;
    total += count;
  }
  return total;
}

bool any_in(Format format, const Component& component) {
  const std::vector<TensorInfo>& tensors = component.source->tensors();
  return std::any_of(tensors.begin(), tensors.end(), [&](const TensorInfo& t) { return t.format == format; });
}

void read_int(const Json& json, const char* key, int& value) {
  if (const Json* found = json.find(key)) value = static_cast<int>(found->as_int());
}

void read_double(const Json& json, const char* key, double& value) {
  if (const Json* found = json.find(key)) value = found->as_double();
}

// The model's own defaults (ModelFiles::defaults).
void apply_defaults(const Json& json, ModelFacts& facts) {
  if (json.find("width") != nullptr || json.find("steps") != nullptr) facts.name = "model";
  if (const Json* name = json.find("name")) facts.name = name->as_string();
  if (const Json* scheduler = json.find("scheduler")) facts.scheduler = scheduler->as_string();
  if (const Json* sampler = json.find("sampler")) facts.sampler = sampler->as_string();
  if (const Json* seed = json.find("seed")) facts.seed = parse_seed(*seed).value;
  read_int(json, "width", facts.width);
  read_int(json, "height", facts.height);
  read_int(json, "frames", facts.frames);
  read_int(json, "steps", facts.evaluations);
  read_int(json, "canvas_short_edge", facts.short_edge);
  read_int(json, "canvas_short_edge", facts.references.video_short_edge);
  read_int(json, "reference_image_short_edge", facts.references.image_short_edge);
  if (const Json* pixels = json.find("canvas_max_pixels")) facts.max_pixels = pixels->as_int();
  read_double(json, "video_shift", facts.video_shift);
  read_double(json, "audio_shift", facts.audio_shift);
  // A model that states its own shortest clip was trained below the release's range.
  if (const Json* seconds = json.find("min_seconds")) {
    facts.trained_frames_min =
        std::min(facts.frames, align_frames(static_cast<int>(seconds->as_double() * kFramesPerSecond)));
    facts.references.least_seconds = std::min(facts.references.least_seconds, seconds->as_double());
    facts.references.least_side = 1;
  }
}

}  // namespace

ModelFacts model_facts(const ModelFiles& files) {
  ModelFacts facts;
  for (const Component& component : files.components) {
    if (component.role == Role::adapter) facts.adapters.push_back(component.origin);
  }
  const Component* const plain = files.find_dit(Partition::fl2va);
  const Component* const references = files.find_dit(Partition::ref2va);
  const Component* const dit = plain != nullptr ? plain : references;
  const Component* const text = files.find(Role::conditioner);
  const Component* const video = files.find(Role::video_vae);
  const Component* const audio = files.find(Role::audio_vae);
  facts.dit = plain != nullptr;
  facts.dit_ref = references != nullptr;
  if (dit != nullptr && facts.dit != facts.dit_ref) facts.only_dit = dit->origin + " (" + dit->partition_from + ")";
  facts.conditioner = text != nullptr;
  facts.vision = any_name(text, {"model.visual.", "visual.", "vis."});
  facts.tokenizer = files.tokenizer.has_value();
  facts.video_decoder = any_name(video, {"decoder.", "blocks."});
  facts.video_encoder = any_name(video, {"encoder.", "enc."});
  facts.audio_decoder = audio != nullptr;
  facts.audio_encoder = any_name(audio, {"mean_proj."});
  if (dit != nullptr && weights_of(*dit) >= kReleaseSize) facts.precision = "bf16";
  facts.fp8 = dit != nullptr && any_in(Format::f8_e4m3, *dit);
  facts.nvfp4 = dit != nullptr && any_in(Format::nvfp4, *dit);
  facts.linter = std::make_shared<const PromptLinter>(files);
  if (!files.defaults.is_null()) apply_defaults(files.defaults, facts);
  if (dit != nullptr && dit->origin.rfind("embedded demo", 0) == 0) facts.name = "demo";
  return facts;
}

ModelFacts text_facts(ModelFacts facts) {
  facts.dit = facts.dit_ref = true;
  facts.video_encoder = facts.video_decoder = facts.audio_decoder = facts.audio_encoder = true;
  return facts;
}

}  // namespace h3
