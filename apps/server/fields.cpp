#include "apps/server/fields.h"

#include <algorithm>
#include <cmath>

#include "apps/server/http.h"
#include "base/error.h"
#include "base/nearest.h"

namespace h3::server {
namespace {

void apply_quality(Draft& draft, const Given& given) {
  if (given.value.is_integer()) return set_engine(draft, given, "quality", given.value);
  constexpr std::pair<const char*, int> kWords[] = {{"lossless", 0}, {"maximum", 10},  {"high", 16}, {"hd", 16},
                                                    {"medium", 20},  {"standard", 20}, {"low", 26}};
  const std::string word = text_of(given);
  for (const auto& [name, factor] : kWords) {
    if (word == name) return set_engine(draft, given, "quality", factor);
  }
  refuse_value(given, "lossless, high, medium, low or a rate factor of 0 to 51");
}

void apply_compression(Draft& draft, const Given& given) {
  // 100 is the best picture in the programs that have this field; rate factor 14 cannot be told from the source.
  const int64_t value = whole_of(given, "0 to 100");
  if (value < 0 || value > 100) refuse_value(given, "0 to 100");
  set_engine(draft, given, "quality", static_cast<int64_t>(std::lround(51 - 0.37 * static_cast<double>(value))));
}

void apply_format(Draft& draft, const Given& given) {
  const std::string format = text_of(given);
  const std::string known = clip_extensions();  // ".mp4, .webm, ..."
  const bool ok =
      !format.empty() && format.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789") == std::string::npos &&
      (known.find("." + format + ",") != std::string::npos || known.find("." + format + " ") != std::string::npos);
  if (!ok) refuse_value(given, known.substr(0, known.find(" or ")));
  draft.format = format;
}

void apply_task(Draft& draft, const Given& given) {
  draft.task = text_of(given);
  if (draft.task != "t2va" && draft.task != "fl2va" && draft.task != "ref2va") {
    refuse_value(given, "t2va, fl2va or ref2va");
  }
}

void apply_count(Draft&, const Given& given) {
  if (whole_of(given, "1") != 1) refuse_value(given, "1", "send one request per clip, with seed, seed + 1 ...");
}

void apply_steps(Draft& draft, const Given& given) {
  set_engine(draft, given, "steps", whole_of(given, "a whole number"));
}

void apply_seed(Draft& draft, const Given& given) { set_engine(draft, given, "seed", given.value); }
void apply_output(Draft& draft, const Given& given) { draft.output = text_of(given); }
void apply_model(Draft& draft, const Given& given) { draft.model = text_of(given); }
void apply_user(Draft& draft, const Given& given) { draft.user = text_of(given); }
void apply_strict(Draft& draft, const Given& given) { draft.strict = boolean_of(given); }
void apply_rewrite(Draft& draft, const Given& given) { draft.rewrite = boolean_of(given); }

void apply_profile(Draft& draft, const Given& given) {
  if (given.value.is_bool() && !given.value.as_bool()) return;  // SGLang's switch of its tracer
  set_engine(draft, given, "profile", text_of(given));
}

using K = FieldKind;
constexpr const char* kDistilled = "the model is distilled and takes no guidance";

// clang-format off
constexpr Field kFields[] = {
    // name, aliases, kind, engine field, apply, neutral, refuse, allowed, help
    {"prompt", "", K::text, "prompt", nullptr, "", false, "not empty", "What the clip shows and how it sounds."},
    {"task", "extra_params.task", K::text, "", apply_task, "", false, "t2va, fl2va, ref2va",
     "From text, from text and keyframes, from text and references. Follows from the media when left out."},
    {"model", "", K::text, "", apply_model, "", false, "", "Accepted for other clients; the server has one model."},
    {"user", "", K::text, "", apply_user, "", false, "", "Kept with the job."},

    {"size", "", K::size, "", apply_size, "", false, "WIDTHxHEIGHT, 32..4096 each",
     "Canvas; snapped to multiples of 32, the result is echoed."},
    {"width", "", K::whole, "width", nullptr, "", false, "32..4096", "Width in pixels, with height."},
    {"height", "", K::whole, "height", nullptr, "", false, "32..4096", "Height in pixels, with width."},
    {"target_shape", "", K::list, "", apply_target_shape, "", false, "[height, width]", "As in LightX2V."},
    {"aspect_ratio", "ratio target.aspect_ratio aspect", K::text, "", apply_aspect, "", false, "1:4..4:1, auto",
     "Shape of the picture; the size follows from the short edge."},
    {"short_edge", "target.short_edge", K::whole, "short_edge", nullptr, "", false, "32..4096",
     "Length of the shorter side, with an aspect ratio or a keyframe."},
    {"resolution", "", K::text, "", apply_resolution, "", false, "768p, 544p ... or WIDTHxHEIGHT",
     "Short edge or canvas."},
    {"seconds", "duration_seconds duration target.duration_seconds extra_params.duration", K::number, "",
     apply_seconds,
     "", false, "above 0, up to 60.4", "Length; snapped up to the 17k+5 frame grid at 24 per second."},
    {"num_frames", "frames video_frames target_video_length", K::whole, "frames", nullptr, "", false, "1..1450",
     "Length in frames instead of seconds."},
    {"exact", "", K::boolean, "exact", nullptr, "", false, "", "Cut picture and sound to the length asked for."},

    {"seed", "", K::seed, "", apply_seed, "", false, "0..2^64-1, or -1 or null to draw one",
     "Seed of the noise; text is allowed for large ones. The seed used is echoed."},
    {"n", "num_outputs_per_prompt", K::whole, "", apply_count, "", false, "1", "Clips per request."},
    {"num_inference_steps", "steps infer_steps sample_params.sample_steps", K::whole, "", apply_steps, "", false,
     "1..1000",
     "Model evaluations."},
    {"flow_shift", "sample_params.flow_shift video_shift extra_params.flow_shift", K::number, "video_shift",
     nullptr, "",
     false, "above 0, up to 100", "Timestep shift of the video."},
    {"audio_flow_shift", "extra_params.audio_flow_shift audio_shift", K::number, "audio_shift", nullptr, "", false,
     "above 0, up to 100", "Timestep shift of the sound."},
    {"sampler", "sample_params.sample_method extra_params.sample_solver", K::text, "sampler", nullptr, "", false,
     "", "How one evaluation moves the clip on."},
    {"scheduler", "sample_params.scheduler", K::text, "scheduler", nullptr, "", false, "",
     "Where the evaluations lie between noise and clip."},
    {"profile", "", K::text, "", apply_profile, "", false, "",
     "Whose noise order, keyframe rule and schedule to follow."},
    {"stock_sampler", "", K::boolean, "stock_sampler", nullptr, "", false, "",
     "Step the sound on the video's clock. Wrong at few steps; for comparison."},
    {"precision", "", K::text, "precision", nullptr, "", false, "f32, bf16, int8, fp8, nvfp4",
     "Arithmetic of transformer and text encoder."},
    {"vae_precision", "", K::text, "vae_precision", nullptr, "", false, "f32, bf16, f16, fp8",
     "Arithmetic of the video VAE."},

    {"input_reference",
     "first_frame_image init_image image_path first_frame image reference_url extra_params.image", K::media, "",
     apply_first, "", false, "a picture", "The clip starts with this picture."},
    {"last_frame_image", "end_image last_frame_path last_frame", K::media, "", apply_last, "", false, "a picture",
     "The clip ends with this picture."},
    {"input_references", "", K::list, "", apply_first, "", false, "one or two pictures; files of any kind for ref2va",
     "Keyframes by position, as in vLLM-Omni: the first, then the last; references where the task is ref2va."},
    {"frame_indices", "extra_params.frame_indices", K::list, "", apply_frame_indices, "", false, "0, -1",
     "Which frames the pictures of input_reference and input_references are, in their order: 0 the first, -1 the "
     "last."},
    {"conditions", "", K::list, "", apply_conditions, "", false,
     "objects with type (image, video, video_audio, audio), uri, role (keyframe, reference), frame_index, name, sound, "
     "silent",
     "Keyframes and references as the official examples write them."},
    {"ref_images", "ref_image ref_images_b64 image_reference reference_images reference_image", K::list, "",
     apply_ref_images, "", false, "up to 9 pictures", "Reference pictures: <Picture 1>, <Picture 2> ..."},
    {"ref_videos", "ref_video video_reference reference_videos reference_video", K::list, "", apply_ref_videos, "",
     false, "up to 3 clips, or objects with video and audio or silent",
     "Reference clips: <Video 1> ... The sound of each is an <Audio n> of its own, unless it is left out."},
    {"ref_video_audios", "ref_video_audio", K::list, "", apply_ref_video_audios, "", false,
     "after ref_videos, one for each clip or null; a single one belongs to the clip before it",
     "Sounds that stand in for those of the clips."},
    {"ref_audios", "ref_audio audio_reference reference_audios reference_audio", K::list, "", apply_ref_audios, "",
     false, "up to 3 sounds, with a picture or a clip", "Reference sounds: <Audio 1> ..."},
    {"ref_image_size", "reference_resize_mode", K::text, "", apply_ref_image_size, "", false, "official, match, max",
     "How reference pictures are scaled: to a short edge of 2048, down to the area of the clip, or down to 2048."},
    {"ref_silent", "ref_silent_video", K::boolean, "ref_silent", nullptr, "", false, "",
     "Leave out the sound of reference clips."},
    {"fit", "resize_mode", K::text, "fit", nullptr, "", false, "stretch, cover, contain",
     "How keyframes are brought to the size of the clip."},

    {"audio", "generate_sound generate_audio", K::boolean, "audio", nullptr, "", false, "",
     "Whether the clip has sound."},
    {"quality", "output_quality", K::text, "", apply_quality, "", false, "lossless, high, medium, low or 0..51",
     "Quality of the video encoder."},
    {"output_compression", "", K::whole, "", apply_compression, "", false, "0..100",
     "The same as other programs count it: 100 is best."},
    {"output_format", "", K::text, "", apply_format, "", false, "mp4, webm, avi, y4m", "Container of the clip."},
    {"output", "output_path save_result_path", K::text, "", apply_output, "", false, "below --output-root",
     "Also write the clip to this file on the server."},
    {"rewrite_prompt", "use_prompt_enhancer", K::boolean, "", apply_rewrite, "", false, "",
     "Let the server's --rewriter improve the prompt; the original is kept."},
    {"strict", "", K::boolean, "", apply_strict, "", false, "",
     "Refuse what would only be warned about, doubts about references and their tags included."},

    {"preset", "", K::text, "preset", nullptr, "", false, "exact, balanced, ultra, turbo",
     "exact computes everything; the others leave work out, as the report says."},
    {"cache", "", K::text, "cache", nullptr, "", false, "", "What stands in for evaluations, as --cache."},
    {"attention", "", K::text, "attention", nullptr, "", false, "", "dense, 8bit or sparse, as --attention."},
    {"turbo", "", K::text, "", apply_turbo, "", false, "a name of available_turbos, none, or true for any",
     "The turbo adapter; it brings its number of evaluations and its shifts."},
    {"lora", "", K::list, "", apply_lora, "", false, "objects with name (one of available_turbos) and scale",
     "Adapters beside the model, in order."},
    {"lora_paths", "lora_name", K::list, "", apply_lora_names, "", false, "names of available_turbos",
     "Adapters, with lora_scales."},
    {"lora_scales", "lora_strength", K::list, "", apply_lora_scales, "", false, "a number for each",
     "Their strengths."},

    {"fps", "target_fps", K::whole, "", nullptr, "24", false, "24", "the model makes 24 frames per second"},
    {"negative_prompt", "", K::text, "", nullptr, "\"\"", false, "empty", kDistilled},
    {"guidance_scale", "cfg_scale sample_params.guidance_scale", K::number, "", nullptr, "1 0", false, "1",
     kDistilled},
    {"guidance_scale_2", "", K::number, "", nullptr, "1 0", false, "1", kDistilled},
    {"true_cfg_scale", "", K::number, "", nullptr, "1 0", false, "1", kDistilled},
    {"sample_params.guidance", "", K::object, "", nullptr, "{}", false, "empty", kDistilled},
    {"video_path", "video_url source_video", K::text, "", nullptr, "\"\"", true, "empty",
     "clips are not continued here; as references they go into ref_videos"},
    {"audio_path", "source_audio", K::text, "", nullptr, "\"\"", true, "empty",
     "sounds are not continued here; as references they go into ref_audios"},
    {"control_reference", "control_type control_frames", K::list, "", nullptr, "[] \"\"", true, "empty",
     "the model has no control input"},
    {"video_noise_mask", "audio_noise_mask", K::list, "", nullptr, "[] \"\"", true, "empty",
     "masks are not possible"},
    {"enable_upscaling", "upscaling", K::boolean, "", nullptr, "false", false, "false", "there is no upscaler"},
    {"enable_frame_interpolation", "", K::boolean, "", nullptr, "false", false, "false",
     "there is no frame interpolation"},
    {"enable_teacache", "cache_mode", K::boolean, "", nullptr, "false \"\" \"off\" \"none\" \"disabled\"", false,
     "false",
     "step caches are part of presets here"},
    {"sound_duration", "", K::number, "", nullptr, "0", false, "left out", "the sound is as long as the picture"},
    {"max_sequence_length", "", K::whole, "", nullptr, "0", false, "left out", "prompts are not cut"},
    {"boundary_ratio", "moe_boundary", K::number, "", nullptr, "0", false, "left out",
     "the model has one transformer"},
    {"generator_device", "", K::text, "", nullptr, "\"cpu\" \"cuda\" \"\"", false, "left out",
     "the noise does not depend on the device"},
    {"perf_dump_path", "", K::text, "", nullptr, "\"\"", false, "left out", "the report of a job has its times"},
    {"clip_skip", "", K::whole, "", nullptr, "-1", false, "left out", "the text encoder has one tap"},
    {"strength", "", K::number, "", nullptr, "1 0.75", false, "left out", "keyframes are used as they are"},
    {"sample_params.eta", "", K::number, "", nullptr, "0", false, "0", "the samplers draw no noise of their own"},
    {"sample_params.shifted_timestep", "", K::whole, "", nullptr, "0 -1", false, "0", "use flow_shift"},
    {"sample_params.custom_sigmas", "", K::list, "", nullptr, "[]", true, "empty", "schedules are chosen by name"},
    {"vae_tiling_params", "", K::object, "", nullptr, "{}", false, "left out", "tiles are planned by the engine"},
    {"start_time_seconds", "extra_params.start_time_seconds", K::number, "", nullptr, "0", true, "0",
     "keyframes are the first or the last frame"},
};
// clang-format on

// Whether two spellings of a canonical field say the same.
std::vector<std::string> words(const char* text) {
  std::vector<std::string> out;
  std::string word;
  for (const char* c = text; *c != '\0'; ++c) {
    if (*c != ' ') {
      word += *c;
    } else if (!word.empty()) {
      out.push_back(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) out.push_back(std::move(word));
  return out;
}

const Field* find_field(const std::string& name) {
  for (const Field& field : kFields) {
    if (name == field.name) return &field;
    for (const std::string& alias : words(field.aliases)) {
      if (name == alias) return &field;
    }
  }
  return nullptr;
}

std::string shown_value(const Given& given) {
  return given.file ? "an uploaded file" : given.value.dump().substr(0, 80);
}

[[noreturn]] void unknown(const Given& given) {
  const std::string& name = given.name;
  std::vector<std::string> known;
  for (const Field& field : kFields) {
    known.emplace_back(field.name);
    for (std::string& alias : words(field.aliases)) known.push_back(std::move(alias));
  }
  const std::string what = "unknown field" + suggestion(name, known);
  refuse_unknown(given, what.c_str(), "the fields in /openapi.json");
}

// Numbers and booleans of a form are text.
Json typed(const Field& field, const Given& given) {
  if (!given.text || !given.value.is_string()) return given.value;
  const std::string& text = given.value.as_string();
  const bool plain = field.kind == K::whole || field.kind == K::number || field.kind == K::boolean;
  if (!plain) return given.value;
  if (field.kind == K::boolean && (text == "True" || text == "1")) return true;
  if (field.kind == K::boolean && (text == "False" || text == "0")) return false;
  try {
    return Json::parse(text, "form");
  } catch (const Error&) {
    return given.value;  // refused by its type
  }
}

// Clients send null or an empty form field for "not set". A null seed means a drawn one.
bool is_unset(const Field& field, const Given& given) {
  if (given.file || field.kind == K::seed) return false;
  return given.value.is_null() || (given.text && given.value.is_string() && given.value.as_string().empty());
}

bool is_neutral(const Field& field, const Given& given) {
  if (given.file) return false;
  if (given.value.is_null()) return true;
  for (const std::string& word : words(field.neutral)) {
    const Json neutral = Json::parse(word, "neutral");
    if (neutral.is_number() && given.value.is_number() && neutral.as_double() == given.value.as_double()) return true;
    if (neutral.dump() == given.value.dump()) return true;
  }
  return given.text && given.value.is_string() && given.value.as_string().empty();
}

void without_function(Draft& draft, const Field& field, const Given& given) {
  if (is_neutral(field, given)) return;
  if (field.refuse || draft.strict) refuse_value(given, field.allowed, field.help);
  draft.warnings.push_back(given.name + ": ignored, " + field.help);
}

void apply(Draft& draft, const Field& field, const Given& given) {
  if (field.apply == nullptr && *field.engine == '\0') return without_function(draft, field, given);
  if (is_unset(field, given)) return;
  if (field.apply != nullptr) {
    field.apply(draft, given);
  } else {
    Json value = given.value;
    if (field.kind == K::whole) value = whole_of(given, field.allowed);
    if (field.kind == K::number) value = number_of(given, field.allowed);
    if (field.kind == K::boolean) value = boolean_of(given);
    set_engine(draft, given, field.engine, std::move(value));
  }
}

// Media are named, not repeated: a picture in an echo would be megabytes.
Json echo_of(const Field& field, const Given& given) {
  if (given.file) return "upload " + given.file->name;
  if (field.kind != K::media && field.kind != K::list) return given.value;
  const std::string text = given.value.dump();
  return text.size() > 300 ? Json(strf("%zu bytes", text.size())) : given.value;
}

// Files that conditions may speak of, whatever their parts are called. One that nobody speaks of is a field of its own.
void take_attachments(const std::vector<Given>& fields, Draft& draft) {
  std::string conditions;
  for (const Given& given : fields) {
    if (given.name == "conditions") conditions += given.value.dump();
  }
  for (const Given& given : fields) {
    if (!given.file || conditions.find(Json("attachment:" + given.name).dump()) == std::string::npos) continue;
    if (!draft.attachments.emplace(given.name, given.file).second) {
      throw ApiError{400, "conflict", given.name + ": two files have this name", given.name, "", "one file a name", 0};
    }
  }
}

// What says what pictures are for comes before them.
std::vector<Given> in_order(const std::vector<Given>& fields, const Draft& draft) {
  std::vector<Given> ordered, others;
  for (const Given& given : fields) {
    if (given.file && draft.attachments.count(given.name) > 0) continue;
    const Field* const field = find_field(given.name);
    if (field == nullptr) unknown(given);
    const std::string_view name = field->name;
    (name == "task" || name == "frame_indices" ? ordered : others).push_back(given);
  }
  ordered.insert(ordered.end(), others.begin(), others.end());
  return ordered;
}

// A list that came as several fields is echoed as one.
void echo(Draft& draft, const Field& field, const Given& given) {
  if (given.value.is_null() && !given.file) return;
  Json value = echo_of(field, given);
  const Json* const before = field.kind == K::list ? draft.canonical.find(field.name) : nullptr;
  if (before != nullptr) {
    Json list = before->is_array() ? *before : Json::array({*before});
    list.push(std::move(value));
    value = std::move(list);
  }
  draft.canonical.set(field.name, std::move(value));
}

// Clients of other servers give the canvas and the length twice, because one of the two is required there.
void settle(Draft& draft) {
  settle_adapters(draft);
  settle_frame_indices(draft);
  for (const auto& [name, file] : draft.attachments) {
    if (draft.attached.count(name) > 0) continue;
    refuse_unknown({name, {}, file, true}, "no condition has this file as its uri or its sound", "files that are used");
  }
  draft.attachments.clear();
  Request& request = draft.request;
  if (draft.strict) request.strict = true;
  if (request.width && request.height) {
    if (!request.aspect.empty()) {
      request.aspect.clear();
      draft.warnings.push_back(draft.spelled["aspect"] + ": not needed, width and height fix the canvas");
    }
    if (request.short_edge && *request.short_edge == std::min(*request.width, *request.height))
      request.short_edge.reset();
  }
  if (request.frames && request.seconds && !draft.strict) {
    draft.warnings.push_back(draft.spelled["seconds"] + ": ignored, " + draft.spelled["frames"] + " is given");
    request.seconds.reset();
  }
}

std::string default_name(const std::string& engine) {
  for (const Field& field : kFields) {
    if (engine == field.engine) return field.name;
  }
  if (engine == "steps") return "num_inference_steps";
  if (engine == "first_frame") return "input_reference";
  if (engine == "last_frame") return "last_frame_image";
  if (engine == "aspect") return "aspect_ratio";
  if (engine.rfind("references", 0) == 0) return "conditions";
  return engine;
}

}  // namespace

std::span<const Field> field_table() { return kFields; }

const char* name_of(FieldKind kind) {
  switch (kind) {
    case K::text: return "text";
    case K::whole: return "whole number";
    case K::number: return "number";
    case K::boolean: return "true or false";
    case K::seed: return "whole number or text";
    case K::size: return "text";
    case K::media: return "picture";
    case K::list: return "list";
    case K::object: return "object";
  }
  return "";
}

Draft draft_of(const std::vector<Given>& fields) {
  Draft draft;
  // First, because it changes how the others are read.
  for (const Given& given : fields) {
    if (given.name == "strict")
      apply_strict(draft, {given.name, typed(*find_field("strict"), given), given.file, given.text});
  }
  std::map<std::string, const Given*> seen;
  take_attachments(fields, draft);
  for (const Given& given : in_order(fields, draft)) {
    const Field* const field = find_field(given.name);
    const bool repeats = field->kind == K::list;
    if (is_unset(*field, given)) continue;
    const auto [before, fresh] = seen.emplace(field->name, &given);
    if (!fresh && !repeats && before->second->value.dump() != given.value.dump()) {
      throw ApiError{400,
                     "conflict",
                     given.name + ": given beside " + before->second->name +
                         ", which means the same; drop one "
                         "of them",
                     given.name,
                     given.value.dump().substr(0, 80),
                     "one of the two",
                     0};
    }
    const Given value{given.name, typed(*field, given), given.file, given.text};
    apply(draft, *field, value);
    echo(draft, *field, value);
  }
  settle(draft);
  return draft;
}

void refuse_unknown(const Given& given, const char* what, const std::string& allowed) {
  const std::string name = given.name.substr(0, 100);
  throw ApiError{400, "unknown_field", name + ": " + what + "; allowed: " + allowed, name, shown_value(given), allowed,
                 0};
}

void refuse_value(const Given& given, const std::string& allowed, const std::string& reason) {
  const std::string value = shown_value(given);
  throw ApiError{400,
                 "invalid_value",
                 given.name + ": " + value + " is not possible" + (reason.empty() ? "" : ", " + reason) +
                     (allowed.empty() ? "" : "; allowed: " + allowed),
                 given.name,
                 value,
                 allowed,
                 0};
}

std::string text_of(const Given& given) {
  if (given.value.is_string()) return given.value.as_string();
  if (given.text && given.value.is_number()) return given.value.dump();
  refuse_value(given, "text");
}

bool is_nothing(const Given& given) {
  if (given.file) return false;
  const Json& value = given.value;
  return value.is_null() || (value.is_array() && value.size() == 0) || (value.is_object() && value.members().empty()) ||
         (value.is_string() && value.as_string().empty());
}

std::vector<Json> list_of(const Given& given) {
  return given.value.is_array() ? given.value.items() : std::vector<Json>{given.value};
}

Given entry_of(const Given& given, const Json& item, size_t index) {
  return {given.value.is_array() ? strf("%s[%zu]", given.name.c_str(), index) : given.name, item, given.file,
          given.text};
}

double number_of(const Given& given, const std::string& allowed) {
  if (given.value.is_number()) return given.value.as_double();
  if (given.value.is_string()) {
    try {
      const Json number = Json::parse(given.value.as_string(), "number");
      if (number.is_number()) return number.as_double();
    } catch (const Error&) {
    }
  }
  refuse_value(given, allowed, "it must be a number");
}

int64_t whole_of(const Given& given, const std::string& allowed) {
  const double number = number_of(given, allowed);
  if (std::floor(number) != number || std::fabs(number) > 2e9)
    refuse_value(given, allowed, "it must be a whole number");
  return static_cast<int64_t>(number);
}

bool boolean_of(const Given& given) {
  if (given.value.is_bool()) return given.value.as_bool();
  refuse_value(given, "true or false");
}

void set_engine(Draft& draft, const Given& given, const char* engine, Json value) {
  draft.spelled[engine] = given.name;
  try {
    set_field(draft.request, engine, value);
  } catch (const Error& error) {
    throw to_api_error(error, draft.spelled);
  }
}

ApiError to_api_error(const Error& error, const std::map<std::string, std::string>& spelled) {
  std::string message = error.what();
  ApiError out{400, "invalid_value", message, "", "", "", 0};
  if (error.code() == Code::io || error.code() == Code::data) out.code = "invalid_media";
  const size_t colon = message.find(": ");
  if (colon == std::string::npos || message.find(' ') < colon) return out;
  const std::string engine = message.substr(0, colon);
  const auto found = spelled.find(engine);
  out.param = found != spelled.end() ? found->second : default_name(engine);
  out.message = out.param + message.substr(colon);
  const std::string rest = message.substr(colon + 2);
  // "a.png is 90x60, give a picture of ...", "10 images are given, at most 9 are allowed"
  if (engine.rfind("references", 0) == 0) {
    const size_t give = std::min(rest.find(", give "), rest.find(", at most "));
    out.value = rest.substr(0, give);
    if (give != std::string::npos) out.allowed = rest.substr(rest[give + 2] == 'g' ? give + 7 : give + 2);
    return out;
  }
  const size_t is = rest.find(" is ");
  if (is != std::string::npos && is < 80) out.value = rest.substr(0, is);
  const size_t give = rest.find("give ");
  if (give != std::string::npos) {
    out.allowed = rest.substr(give + 5);
    out.allowed = out.allowed.substr(0, out.allowed.find(", for example"));
  }
  return out;
}

}  // namespace h3::server
