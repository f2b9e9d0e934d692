// Validation: from what was asked to what will be done.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/file_map.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "model/dit/layout.h"
#include "ops/ops.h"
#include "pipeline/acceleration.h"
#include "pipeline/checks.h"
#include "pipeline/conditions.h"
#include "pipeline/precision.h"
#include "pipeline/prompt_lint.h"
#include "pipeline/references.h"
#include "sampling/sampler.h"
#include "sampling/schedule.h"

namespace h3 {
namespace {

// What a profile stands for besides its noise (spec dit 5, 6; vae 8): its schedule and sampler, how later keyframes and
// a lone last one are brought onto the canvas, and how large reference pictures are.
struct ProfileRow {
  const char *name, *scheduler, *sampler;
  Fit later, lone_last;
  const char* ref_image_size;
};

constexpr ProfileRow kProfiles[] = {
    {"diffusers", "linspace", "euler", Fit::cover, Fit::stretch, "official"},
    {"comfy", "simple", "res_multistep", Fit::cover, Fit::cover, "match"},
    {"cortiq", "two-clock", "two-clock", Fit::cover, Fit::stretch, "official"},
    {"sdcpp", "discrete", "euler", Fit::stretch, Fit::stretch, "max"},
};

template <typename Rows>
std::vector<std::string> names_of(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

class Resolver {
 public:
  Resolver(const Request& request, const ModelFacts& facts) : asked_(request), facts_(facts) { out_.request = request; }

  Resolved run() {
    prompt();
    parts();
    keyframe_pictures();
    canvas();
    length();
    acceleration();
    sampling();
    precision();
    files();
    fit_keyframes();
    references();
    lint();
    explicit_request();
    return std::move(out_);
  }

 private:
  std::string given(const std::string& field) const {
    const auto found = asked_.origin.find(field);
    return found == asked_.origin.end() ? "given" : found->second;
  }
  std::string default_of() const { return "default of the " + facts_.name; }
  // The recipe of a distilled adapter; nothing without one.
  const lora::Recipe* recipe() const { return out_.acceleration->recipe ? &*out_.acceleration->recipe : nullptr; }
  // Where the schedule comes from when nobody asked for one.
  std::string schedule_default() const {
    return recipe() ? "the " + recipe()->name + " adapter, by " + recipe()->from : default_of();
  }
  void choose(const char* field, std::string value, std::string from) {
    out_.choices.push_back({field, std::move(value), std::move(from)});
  }

  void prompt();
  void parts();
  void transformer() const;
  void encoders(bool keyframes) const;
  void keyframe_pictures();
  void canvas();
  Canvas asked_canvas(std::string& from);
  void length();
  void acceleration();
  void sampling();
  void shifts();
  void precision();
  void files();
  void fit_keyframes();
  void idle_fields();
  void references();
  void check_tags();
  void lint();
  void explicit_request();
  std::string default_text(const char* field, const std::string& value, const std::string& fallback);
  int default_short_edge() const {
    return facts_.short_edge > 0 ? facts_.short_edge : std::min(facts_.width, facts_.height);
  }

  const Request& asked_;
  const ModelFacts& facts_;
  const ProfileRow* profile_ = nullptr;
  Resolved out_;
};

void Resolver::prompt() {
  const std::string& text = asked_.prompt;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_sequence(std::string_view(text).substr(i));
    if (length == 0) fail(Code::usage, "prompt: byte %zu is not valid UTF-8, give the prompt as UTF-8 text", i);
    i += length;
  }
  if (!asked_.prompt_embeds.empty()) {
    if (!text.empty()) out_.notes.push_back("prompt: recorded only, the embeddings of prompt_embeds are used");
    return;
  }
  if (text.empty()) fail(Code::usage, "prompt: it is empty, describe the clip, for example \"a red ball bounces\"");
  for (const char* pad : {"<|image_pad|>", "<|video_pad|>"}) {
    if (text.find(pad) != std::string::npos) {
      fail(Code::usage, "prompt: it contains %s, which stands for a picture inside the model, remove it", pad);
    }
  }
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    out_.warnings.push_back("prompt: it is blank, so the clip will show anything");
  }
}

// The release has a transformer for prompts and keyframes and one for references; neither does the other's work.
void Resolver::transformer() const {
  const bool references = out_.task == Task::ref2va;
  if (references ? facts_.dit_ref : facts_.dit) return;
  if (facts_.only_dit.empty()) {
    fail(Code::usage, "model: the files have no transformer, add the file that has it to the model files");
  }
  if (references) {
    fail(Code::usage,
         "references: the transformer %s is of the fl2va half of the release, references need the other half: "
         "minimax_h3_ref2va*.safetensors, or Ref2VA/ of the release",
         facts_.only_dit.c_str());
  }
  fail(Code::usage,
       "model: the transformer %s is of the ref2va half of the release, a request without references needs the other "
       "half: minimax_h3_fl2va*.safetensors, or FL2VA/ of the release",
       facts_.only_dit.c_str());
}

void Resolver::encoders(bool keyframes) const {
  const bool seen = std::any_of(asked_.references.begin(), asked_.references.end(),
                                [](const Reference& reference) { return reference.kind != Reference::Kind::audio; });
  if (!keyframes && !seen) return;
  const char* const field = seen                                                  ? "references"
                            : !asked_.first_frame.empty() || asked_.first_picture ? "first_frame"
                                                                                  : "last_frame";
  const char* const what = seen ? "reference" : "keyframe";
  if (asked_.prompt_embeds.empty() && !facts_.vision) {
    fail(Code::usage,
         "%s: the text encoder has no vision tower, so it cannot see a %s, use one that has it or drop the %s", field,
         what, what);
  }
  if (!facts_.video_encoder) {
    fail(Code::usage, "%s: the video VAE has no encoder, so it cannot take a %s, use one that has it or drop the %s",
         field, what, what);
  }
}

// What the request needs of the model, before anything large is read.
void Resolver::parts() {
  const bool keyframes =
      asked_.first_picture || asked_.last_picture || !asked_.first_frame.empty() || !asked_.last_frame.empty();
  const bool references = !asked_.references.empty();
  const bool embeds = !asked_.prompt_embeds.empty();
  const char* const hint = "add the file that has it to the model files";
  if (references && keyframes) {
    fail(Code::usage, "references: they cannot be combined with a first or last frame, drop one of them");
  }
  out_.task = references ? Task::ref2va : keyframes ? Task::fl2va : Task::t2va;
  transformer();
  if (!facts_.video_decoder) fail(Code::usage, "model: the files have no video decoder (video VAE), %s", hint);
  if (!facts_.audio_decoder && asked_.audio.value_or(true)) {
    fail(Code::usage, "model: the files have no audio decoder (audio VAE), %s, or ask for no sound", hint);
  }
  if (!embeds && !facts_.conditioner) {
    fail(Code::usage, "model: the files have no text encoder, %s, or give saved embeddings (prompt_embeds)", hint);
  }
  if (!embeds && !facts_.tokenizer) {
    fail(Code::usage,
         "model: no tokenizer was found inside or beside the files, give the folder with tokenizer.json or with "
         "vocab.json and merges.txt (tokenizer)");
  }
  encoders(keyframes);
  check_reference_list(asked_.references, facts_.references);
  choose("task", name_of(out_.task),
         references  ? "references are given"
         : keyframes ? "a keyframe is given"
                     : "no keyframe is given");
}

void Resolver::keyframe_pictures() {
  const auto load = [&](bool last, const std::string& path, const std::shared_ptr<const Image>& picture) {
    if (path.empty() && !picture) return;
    Keyframe keyframe{last, path, picture ? *picture : read_image(path)};
    const char* const field = last ? "last_frame" : "first_frame";
    for (const std::string& warning : keyframe.picture.warnings) {
      out_.warnings.push_back(std::string(field) + ": " + warning);
    }
    // Runs are repeated from their metadata, which therefore says which picture it was.
    const std::vector<uint8_t>& rgb = keyframe.picture.rgb;
    out_.inputs.push_back({field, path, fnv1a64(std::as_bytes(std::span(rgb)))});
    out_.keyframes.push_back(std::move(keyframe));
  };
  load(false, asked_.first_frame, asked_.first_picture);
  load(true, asked_.last_frame, asked_.last_picture);
  if (!asked_.prompt_embeds.empty()) {
    const FileMap map(asked_.prompt_embeds);
    out_.inputs.push_back({"prompt_embeds", asked_.prompt_embeds, fnv1a64(map.bytes())});
  }
}

Canvas Resolver::asked_canvas(std::string& from) {
  const Request& r = asked_;
  if (r.width) in_range("width", *r.width, kMinSide, kMaxSide, std::to_string(facts_.width).c_str());
  if (r.height) in_range("height", *r.height, kMinSide, kMaxSide, std::to_string(facts_.height).c_str());
  if (r.short_edge) in_range("short_edge", *r.short_edge, kMinSide, kMaxSide, "768");
  const bool both = r.width && r.height;
  if (both && (!r.aspect.empty() || r.short_edge)) {
    fail(Code::usage, "%s: width and height already fix the canvas (%s), drop one of them",
         r.aspect.empty() ? "short_edge" : "aspect", size_text(*r.width, *r.height).c_str());
  }
  from = given("width");
  if (both) return {*r.width, *r.height};
  if ((r.width || r.height) && r.aspect.empty()) {
    fail(Code::usage, "%s: %d is given alone, give %s too, or an aspect", r.width ? "width" : "height",
         r.width ? *r.width : *r.height, r.width ? "height" : "width");
  }
  const int short_edge = r.short_edge.value_or(default_short_edge());
  if (!r.aspect.empty()) {
    const double ratio = parse_aspect(r.aspect);
    from = "aspect " + r.aspect;
    if (r.width) return {*r.width, static_cast<int>(std::lround(*r.width / ratio))};
    if (r.height) return {static_cast<int>(std::lround(*r.height * ratio)), *r.height};
    return canvas_for_aspect(ratio, 1, short_edge, facts_.max_pixels);
  }
  if (!out_.keyframes.empty()) {
    const Image& picture = out_.keyframes[0].picture;
    const double ratio = static_cast<double>(picture.width) / picture.height;
    const char* const field = out_.keyframes[0].last ? "last_frame" : "first_frame";
    if (ratio < 0.25 || ratio > 4) {
      fail(Code::usage, "%s: %s is narrower than 1:4 or wider than 4:1, give width and height of the clip", field,
           size_text(picture.width, picture.height).c_str());
    }
    from = strf("%s is %s", field, size_text(picture.width, picture.height).c_str());
    return canvas_for_aspect(picture.width, picture.height, short_edge, facts_.max_pixels);
  }
  if (r.short_edge) {
    from = strf("short edge %d", short_edge);
    return canvas_for_aspect(facts_.width, facts_.height, short_edge, facts_.max_pixels);
  }
  from = default_of();
  return {facts_.width, facts_.height};
}

void Resolver::canvas() {
  std::string from;
  const Canvas asked = asked_canvas(from);
  in_range("width", asked.width, kMinSide, kMaxSide, std::to_string(facts_.width).c_str());
  in_range("height", asked.height, kMinSide, kMaxSide, std::to_string(facts_.height).c_str());
  out_.width = snap_side(asked.width);
  out_.height = snap_side(asked.height);
  if (out_.width != asked.width || out_.height != asked.height) {
    const std::string was = size_text(asked.width, asked.height);
    from = "snapped from " + was;
    out_.notes.push_back(strf("size: %s is not a multiple of %d, using %s", was.c_str(), kSideStep,
                              size_text(out_.width, out_.height).c_str()));
  }
  choose("size", size_text(out_.width, out_.height), from);
  if (const std::string hint = tile_hint(out_.width, out_.height); !hint.empty()) out_.notes.push_back(hint);
  out_.latent_width = out_.width / 16;
  out_.latent_height = out_.height / 16;
  const int64_t pixels = static_cast<int64_t>(out_.width) * out_.height;
  if (pixels > facts_.trained_pixels) {
    out_.warnings.push_back(strf("size: %s is %lld pixels, the model was trained up to %lld",
                                 size_text(out_.width, out_.height).c_str(), static_cast<long long>(pixels),
                                 static_cast<long long>(facts_.trained_pixels)));
  }
}

void Resolver::length() {
  if (asked_.frames && asked_.seconds) {
    fail(Code::usage, "seconds: %g is given beside frames %d, drop one of them", *asked_.seconds, *asked_.frames);
  }
  int frames = facts_.frames;
  std::string from = default_of();
  if (asked_.frames) {
    in_range("frames", *asked_.frames, 1, kMaxFrames, std::to_string(facts_.frames).c_str());
    frames = *asked_.frames;
    from = given("frames");
  } else if (asked_.seconds) {
    const double most = static_cast<double>(kMaxFrames) / kFramesPerSecond;
    if (!(*asked_.seconds > 0) || !(*asked_.seconds <= most)) {
      fail(Code::usage, "seconds: %g is not allowed, give more than 0 and at most %.1f, for example 5", *asked_.seconds,
           most);
    }
    frames = std::max(1, static_cast<int>(std::lround(*asked_.seconds * kFramesPerSecond)));
    from = strf("%g seconds", *asked_.seconds);
  }
  out_.frames = align_frames(frames);
  const bool exact = asked_.exact.value_or(false);
  out_.output_frames = exact ? frames : out_.frames;
  if (out_.frames != frames) {
    from = strf("snapped up from %d", frames);
    out_.notes.push_back(exact ? strf("frames: rendering %d (17k+5), writing the %d asked for", out_.frames, frames)
                               : strf("frames: %d is not of the form 17k+5, using %d (%.2f s)", frames, out_.frames,
                                      static_cast<double>(out_.frames) / kFramesPerSecond));
  }
  choose("frames", std::to_string(out_.frames), from);
  out_.latent_frames = latent_frames(out_.frames);
  out_.audio_latents = audio_latents(out_.frames);
  constexpr int64_t rate = 32000, per_latent = 800;  // vae 1
  out_.output_samples = exact ? std::min(per_latent * out_.audio_latents, frames * rate / kFramesPerSecond)
                              : per_latent * out_.audio_latents;
  if (out_.frames < facts_.trained_frames_min || out_.frames > facts_.trained_frames_max) {
    out_.warnings.push_back(strf("frames: %d is outside the %d to %d that the model was trained on", out_.frames,
                                 facts_.trained_frames_min, facts_.trained_frames_max));
  }
}

std::string Resolver::default_text(const char* field, const std::string& value, const std::string& fallback) {
  choose(field, value.empty() ? fallback : value, value.empty() ? default_of() : given(field));
  return value.empty() ? fallback : value;
}

void Resolver::acceleration() {
  const auto settled = std::make_shared<Acceleration>(settle_acceleration(asked_, facts_));
  out_.acceleration = settled;
  choose("preset", settled->preset, asked_.preset.empty() ? default_of() : given("preset"));
  for (size_t i = 0; i < settled->adapters.size(); ++i) {
    const AdapterChoice& adapter = settled->adapters[i];
    const std::string field = "lora." + std::to_string(i);
    choose(field.c_str(), strf("%s, strength %g", adapter.path.c_str(), adapter.strength), "given");
    out_.inputs.push_back({field, adapter.path, std::strtoull(adapter.id.c_str(), nullptr, 16)});
  }
  const auto origin = [&](const char* field, const std::string& value) {
    return value.empty() ? "preset " + settled->preset : given(field);
  };
  choose("cache", policy_text(settled->policy), origin("cache", asked_.cache));
  choose("attention", attention_text(settled->attention), origin("attention", asked_.attention));
}

void Resolver::sampling() {
  const Seed seed = asked_.seed.value_or(Seed{facts_.seed, false});
  out_.seed = seed.random ? draw_seed() : seed.value;
  choose("seed", std::to_string(out_.seed), seed.random ? "drawn" : asked_.seed ? given("seed") : default_of());

  out_.profile = default_text("profile", asked_.profile, facts_.profile);
  one_of("profile", out_.profile, names_of(kProfiles));
  for (const ProfileRow& row : kProfiles) {
    if (out_.profile == row.name) profile_ = &row;
  }
  // A profile that was asked for keeps its schedule; otherwise a distilled adapter or model brings its own.
  const lora::Recipe* const distilled = asked_.profile.empty() ? recipe() : nullptr;
  const auto pick = [&](const char* field, const std::string& value, const std::string& fallback) {
    const bool asked = !value.empty();
    choose(field, asked ? value : fallback, asked ? given(field) : distilled ? schedule_default() : default_of());
    return asked ? value : fallback;
  };
  const auto usual = [&](const std::string& of_model, const char* of_profile) {
    return asked_.profile.empty() && !of_model.empty() ? of_model : std::string(of_profile);
  };
  out_.scheduler = pick("scheduler", asked_.scheduler,
                        distilled ? distilled->scheduler : usual(facts_.scheduler, profile_->scheduler));
  one_of("scheduler", out_.scheduler, names_of(schedules()));
  out_.sampler =
      pick("sampler", asked_.sampler, distilled ? distilled->sampler : usual(facts_.sampler, profile_->sampler));
  one_of("sampler", out_.sampler, names_of(samplers()));
  out_.stock_sampler = asked_.stock_sampler.value_or(false);

  const int of_preset = preset_steps(out_.acceleration->preset);
  out_.evaluations = asked_.steps.value_or(recipe() ? recipe()->steps : of_preset > 0 ? of_preset : facts_.evaluations);
  in_range("steps", out_.evaluations, 1, kMaxEvaluations, std::to_string(facts_.evaluations).c_str());
  choose("steps", strf("%d evaluations (%d grid points)", out_.evaluations, out_.evaluations + 1),
         asked_.steps                 ? given("steps")
         : recipe() || of_preset == 0 ? schedule_default()
                                      : "preset " + out_.acceleration->preset);
  if (recipe() && out_.evaluations != recipe()->steps) {
    fail(Code::usage,
         "steps: %d is not possible with the %s adapter, which was distilled for %d; give %d or leave it out",
         out_.evaluations, recipe()->name.c_str(), recipe()->steps, recipe()->steps);
  }
  shifts();
}

void Resolver::shifts() {
  const auto pick = [&](const char* field, const std::optional<double>& value, double fallback) {
    const double shift = value.value_or(fallback);
    if (!(shift > 0) || !(shift <= 100)) {
      fail(Code::usage, "%s: %g is not allowed, give more than 0 and at most 100, for example %g", field, shift,
           fallback);
    }
    choose(field, strf("%g", shift), value ? given(field) : schedule_default());
    return shift;
  };
  out_.video_shift = pick("video_shift", asked_.video_shift, recipe() ? recipe()->video_shift : facts_.video_shift);
  out_.audio_shift = pick("audio_shift", asked_.audio_shift, recipe() ? recipe()->audio_shift : facts_.audio_shift);
}

void Resolver::precision() {
  const std::string compute = default_text("precision", asked_.precision, facts_.precision);
  out_.compute =
      parse_precision("precision", compute, {Compute::f32, Compute::bf16, Compute::int8, Compute::packed}, true);
  if (compute == precision_name(Compute::packed) && !facts_.fp8) {
    fail(Code::usage,
         "precision: fp8 needs a transformer stored in fp8 and an NVIDIA card, and one of them is missing here; give "
         "bf16, which any file and device can do");
  }
  if (compute == "nvfp4" && (!facts_.nvfp4 || !facts_.nvfp4_refused.empty())) {
    fail(Code::usage, "precision: nvfp4 is not possible, %s; give bf16, which any file and device can do",
         facts_.nvfp4 ? facts_.nvfp4_refused.c_str() : "it needs a transformer stored in nvfp4");
  }
  const std::string vae = default_text("vae_precision", asked_.vae_precision, "f32");
  out_.vae_compute =
      parse_precision("vae_precision", vae, {Compute::f32, Compute::bf16, Compute::f16, Compute::packed});
  if (out_.vae_compute == Compute::packed && !facts_.multiplies_fp8) {
    fail(Code::usage,
         "vae_precision: fp8 needs an NVIDIA card of compute capability 8.9 or newer, which this run does not compute "
         "on; give f16, which any device can do");
  }
  in_range("quality", asked_.quality.value_or(18), 0, 51, "18 (0 is lossless, 51 the smallest file)");
}

void Resolver::files() {
  const Request& r = asked_;
  if (!r.output.empty()) check_clip_path(r.output);
  if (!r.wav.empty()) check_folder_of("wav", r.wav);
  if (!r.frames_dir.empty()) check_clip_path(r.frames_dir + "/");
  std::vector<std::string> stages(dump_stages().begin(), dump_stages().end());
  for (const auto& [stage, file] : r.dumps) {
    one_of("dump", stage, stages);
    check_folder_of("dump", file);
  }
  std::vector<std::pair<const char*, std::string>> written = {{"output", r.output}, {"wav", r.wav}};
  for (const auto& [stage, file] : r.dumps) written.emplace_back("dump", file);
  std::vector<std::string> inputs = {r.first_frame, r.last_frame, r.prompt_embeds};
  for (const Reference& reference : r.references) {
    inputs.push_back(reference.path);
    inputs.push_back(reference.sound);
  }
  for (size_t i = 0; i < written.size(); ++i) {
    const auto& [field, path] = written[i];
    if (path.empty()) continue;
    for (const std::string& input : inputs) {
      if (path == input) fail(Code::usage, "%s: %s is also an input, choose another name", field, path.c_str());
    }
    for (size_t j = 0; j < i; ++j) {
      if (path == written[j].second) {
        fail(Code::usage, "%s: %s is already the file of %s, choose another name", field, path.c_str(),
             written[j].first);
      }
    }
  }
  if (r.audio.has_value() && !*r.audio && !r.wav.empty()) {
    fail(Code::usage, "wav: %s is asked for although the clip is to have no sound, drop one of them", r.wav.c_str());
  }
}

// spec dit 4, vae 8.1: the first of the list is stretched, a later one cover-cropped; `fit` overrides both.
void Resolver::fit_keyframes() {
  if (!asked_.fit.empty()) one_of("fit", asked_.fit, {"stretch", "cover", "contain"});
  for (size_t i = 0; i < out_.keyframes.size(); ++i) {
    Keyframe& keyframe = out_.keyframes[i];
    Fit fit = i > 0 ? profile_->later : keyframe.last ? profile_->lone_last : Fit::stretch;
    if (asked_.fit == "stretch") fit = Fit::stretch;
    if (asked_.fit == "cover") fit = Fit::cover;
    if (asked_.fit == "contain") fit = Fit::contain;
    const char* const name = fit == Fit::stretch ? "stretch" : fit == Fit::cover ? "cover" : "contain";
    choose(keyframe.last ? "last_frame.fit" : "first_frame.fit", name,
           asked_.fit.empty() ? "rule of the profile" : given("fit"));
    keyframe.picture = fit_to_canvas(keyframe.picture, out_.width, out_.height, fit);
  }
}

// Fields that only references or keyframes give a meaning. Settings for every run (a configuration file, the
// environment) may stand there for the runs that have some.
void Resolver::idle_fields() {
  const auto asked_here = [&](const char* field) { return given(field) == "given"; };
  const auto refuse = [&](const char* field) {
    fail(Code::usage, "%s: it is given without a reference, add one or leave it out", field);
  };
  if (asked_.references.empty()) {
    if (!asked_.ref_image_size.empty() && asked_here("ref_image_size")) refuse("ref_image_size");
    if (asked_.ref_silent.value_or(false) && asked_here("ref_silent")) refuse("ref_silent");
  }
  if (!asked_.fit.empty() && out_.keyframes.empty() && asked_here("fit")) {
    out_.warnings.push_back("fit: not used, no keyframe is given");
  }
}

// After everything that needs no reading of large files.
void Resolver::references() {
  idle_fields();
  if (!asked_.ref_image_size.empty()) one_of("ref_image_size", asked_.ref_image_size, {"official", "match", "max"});
  if (asked_.ref_silent.value_or(false)) {
    for (const Reference& reference : asked_.references) {
      if (reference.sound.empty()) continue;
      fail(Code::usage, "ref_silent: %s is given as the sound of a reference, drop one of them",
           sound_called(reference).c_str());
    }
  }
  if (!asked_.references.empty()) {
    const ReferenceTarget target{out_.width, out_.height, out_.frames,
                                 default_text("ref_image_size", asked_.ref_image_size, profile_->ref_image_size)};
    out_.references = load_references(asked_, facts_, target, out_.warnings);
    for (size_t i = 0; i < out_.references.size(); ++i) {
      out_.inputs.push_back({strf("references[%zu]", i), out_.references[i].path, hash_of(out_.references[i])});
    }
    out_.request.ref_image_size = target.image_size;
  }
  check_tags();
}

void Resolver::check_tags() {
  if (!asked_.prompt_embeds.empty()) return;
  TagCounts counts;
  counts.pictures = static_cast<int>(out_.keyframes.size());
  for (const ReferenceInput& reference : out_.references) {
    counts.pictures += reference.kind == Reference::Kind::image ? 1 : 0;
    counts.videos += reference.kind == Reference::Kind::video ? 1 : 0;
    counts.sounds += reference.sound_tag.empty() ? 0 : 1;
  }
  std::vector<std::string> doubts = unknown_tags(asked_.prompt, counts);
  for (std::string& doubt : unnamed_references(asked_.prompt, out_.references)) doubts.push_back(std::move(doubt));
  if (!doubts.empty() && asked_.strict.value_or(false)) fail(Code::usage, "%s (strict)", doubts[0].c_str());
  out_.warnings.insert(out_.warnings.end(), doubts.begin(), doubts.end());
}

// After everything that decides how long the clip is and which pictures the prompt comes with.
void Resolver::lint() {
  if (!facts_.linter || !asked_.prompt_embeds.empty()) return;
  const PromptLint found =
      facts_.linter->lint(asked_.prompt, {out_.output_frames / double{kFramesPerSecond}, prompt_media(out_, false)});
  out_.prompt_tokens = found.tokens;
  for (const PromptHint& hint : found.hints) {
    if (hint.level == PromptHint::Level::error) fail(Code::usage, "%s", hint.text.c_str());
    if (hint.level == PromptHint::Level::warning) out_.warnings.push_back(hint.text);
  }
}

void Resolver::explicit_request() {
  Request& r = out_.request;
  for (Reference& reference : r.references) {
    const bool video = reference.kind == Reference::Kind::video;
    reference.silent = video && (reference.silent || asked_.ref_silent.value_or(false));
    if (reference.silent) reference.sound.clear();
    if (reference.sound.empty()) reference.sound_name.clear();
  }
  r.ref_silent.reset();
  r.width = out_.width;
  r.height = out_.height;
  r.aspect.clear();
  r.short_edge.reset();
  r.frames = out_.output_frames;  // snaps to out_.frames again
  r.seconds.reset();
  r.seed = Seed{out_.seed, false};
  r.steps = out_.evaluations;
  r.profile = out_.profile;
  r.scheduler = out_.scheduler;
  r.sampler = out_.sampler;
  r.video_shift = out_.video_shift;
  r.audio_shift = out_.audio_shift;
  r.preset.clear();
  r.turbo.clear();
  const Acceleration& settled = *out_.acceleration;
  r.adapters.clear();
  for (const AdapterChoice& adapter : settled.adapters) r.adapters.push_back({adapter.path, adapter.strength});
  r.cache = settled.policy.mode == "none" ? "" : policy_text(settled.policy);
  r.policy_trace = trace_text(settled.policy.trace);
  const std::string attention = attention_text(settled.attention);
  r.attention = attention == "dense" ? "" : attention;
  r.precision = asked_.precision.empty() ? facts_.precision : asked_.precision;
  r.vae_precision = precision_name(out_.vae_compute);
}

}  // namespace

Resolved resolve(const Request& request, const ModelFacts& facts) { return Resolver(request, facts).run(); }

}  // namespace h3
