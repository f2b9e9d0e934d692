// Whole requests: e2e.json with e2e_<case>.safetensors, every stage of the pipeline against the reference's; and the
// runs of a demo model in a folder with references.json.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "apps/parity/e2e_references.h"
#include "apps/parity/suite.h"
#include "apps/parity/synthetic.h"
#include "base/error.h"
#include "codec/scalar.h"
#include "model/dit/layout.h"
#include "model/text/pixels.h"
#include "model/text/unicode.h"
#include "model/vae/video_weights.h"
#include "pipeline/conditions.h"
#include "pipeline/engine.h"
#include "pipeline/model_facts.h"

namespace h3 {
namespace {

// golden/README 12.
constexpr Limits kText{.rel_l2 = 5e-6}, kTextBf16{.rel_l2 = 3e-2};
constexpr Limits kVelocity{.rel_l2 = 5e-6};
constexpr Limits kAutoencoder{.rel_l2 = 2e-6};
constexpr Limits kLatents{.rel_l2 = 1e-5}, kLatentsBf16{.rel_l2 = 2e-2};
constexpr Limits kNoise{.max_abs = 2e-6};
constexpr Limits kAudio{.rel_l2 = 1e-5};
// Pixels in 0..1, rounded to 16 bits as the stored ones are: the limit of the latents, and at most one step.
constexpr Limits kPixels{.rel_l2 = 1e-5, .max_abs = 1.5 / 65535};
constexpr Limits kBytes{.max_abs = 1};  // 8-bit values may round either way
constexpr Limits kSum{.rel_l2 = 1e-5};

// Everything a run lets out, by tensor name.
struct Collected {
  std::map<std::string, StageTensor> tensors;
  const StageTensor* find(const std::string& name) const {
    const auto found = tensors.find(name);
    return found == tensors.end() ? nullptr : &found->second;
  }
};

RunHooks collect_into(Collected& out) {
  RunHooks hooks;
  hooks.sink.wants = [](const std::string&) { return true; };
  hooks.sink.take = [&out](const StageResult& result) {
    for (const StageTensor& tensor : result.tensors) out.tensors[tensor.name] = tensor;
  };
  return hooks;
}

std::vector<float> as_floats(const StageTensor& tensor) {
  if (!tensor.f32.empty()) return tensor.f32;
  if (!tensor.u8.empty()) return {tensor.u8.begin(), tensor.u8.end()};
  return {tensor.i32.begin(), tensor.i32.end()};
}

// One case of either kind of folder.
class Case {
 public:
  Case(Suite& suite, std::string name, GoldenFile file)
      : suite_(suite), name_(std::move(name)), file_(std::move(file)) {}

  void check(const std::string& tensor, const Limits& limits) const {
    const StageTensor* const got = got_.find(tensor);
    if (got == nullptr) return suite_.fail(label(tensor), "the pipeline did not produce it");
    suite_.check(label(tensor), as_floats(*got), file_.f32(tensor), limits);
  }
  void exact(const std::string& tensor) const {
    const StageTensor* const got = got_.find(tensor);
    if (got == nullptr) return suite_.fail(label(tensor), "the pipeline did not produce it");
    suite_.exact(label(tensor), as_floats(*got) == file_.f32(tensor));
  }
  std::string label(const std::string& what) const { return name_ + "." + what; }
  int count(const std::string& prefix) const {
    int found = 0;
    while (file_.has(prefix + std::to_string(found))) ++found;
    return found;
  }

  Suite& suite_;
  std::string name_;
  GoldenFile file_;
  Collected got_;
};

Image image_of(const GoldenFile& file, const std::string& tensor) {
  const std::vector<int64_t> values = file.i64(tensor);
  Image image;
  image.height = static_cast<int>(file.info(tensor).dims[0]);
  image.width = static_cast<int>(file.info(tensor).dims[1]);
  image.rgb.assign(values.begin(), values.end());
  return image;
}

// The media of golden/README 11, by name of the case; empty for a case that the page does not list.
std::vector<Image> listed_media(const std::string& name) {
  const auto made = [](const char* kind, int width, int height, int seed) {
    Image image;
    image.width = width;
    image.height = height;
    image.rgb = made_image(kind, width, height, seed);
    return image;
  };
  if (name == "fl2va_first") return {made("synth", 100, 80, 1)};
  if (name == "fl2va_last") return {made("synth", 53, 70, 2)};
  if (name == "fl2va_both") return {made("smooth", 100, 80, 1), made("smooth", 53, 70, 2)};
  return {};
}

// The sample is rounded to f16 before it is normalised, so an error of one part in 1e7 can show as a step of that grid.
// Two roundings move a difference by at most one step of it; judged is what exceeds that, by the limit of the
// autoencoder. Later stages continue from the golden latent, so that they are judged on their own.
void check_condition(const Case& c, const std::string& tensor, const std::vector<float>& latent,
                     const VideoVaeConfig& statistics) {
  const std::vector<float> want = c.file_.f32(tensor);
  if (latent.size() != want.size()) return c.suite_.fail(c.label(tensor), "wrong shape");
  const size_t positions = want.size() / statistics.mean.size();
  std::vector<float> judged(want.size()), target(want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const float mean = statistics.mean[i / positions], std = statistics.std[i / positions];
    const uint16_t bits = f32_to_f16(want[i] * std + mean);
    const float value = f16_to_f32(bits);
    const float step = std::fabs(f16_to_f32(static_cast<uint16_t>(bits + 1)) - value);
    const float difference = f16_to_f32(f32_to_f16(latent[i] * std + mean)) - value;
    target[i] = value;
    judged[i] = std::fabs(difference) <= step ? value : value + difference - std::copysign(step, difference);
  }
  c.suite_.check(c.label(tensor), judged, target, kAutoencoder);
}

void check_latents(const Case& c) {
  for (int i = 0; i < c.count("video_rows_after_step."); ++i) {
    const std::string index = std::to_string(i);
    c.check("video_rows_after_step." + index, kLatents);
    c.check("audio_rows_after_step." + index, kLatents);
  }
  for (int i = 0; i < c.count("video_velocity."); ++i) {
    const std::string index = std::to_string(i);
    c.check("video_velocity." + index, kVelocity);
    c.check("audio_velocity." + index, kVelocity);
  }
  c.check("latents", kLatents);
  c.check("audio_latents", kLatents);
}

void check_frames(const Case& c, const Json& entry) {
  const StageTensor* const frames = c.got_.find("frames");
  if (frames == nullptr) return c.suite_.fail(c.label("frames"), "the pipeline did not produce them");
  const size_t count = static_cast<size_t>(frames->dims[1]);
  const size_t area = static_cast<size_t>(frames->dims[2] * frames->dims[3]);
  const std::vector<Json>& shape = entry.at("video_shape").items();
  c.suite_.exact(c.label("video_shape"), shape[0].as_int() == frames->dims[1] && shape[2].as_int() == frames->dims[2] &&
                                             shape[3].as_int() == frames->dims[3]);
  const auto pixel = [&](size_t frame, size_t channel, size_t i) {
    return frames->f32[(channel * count + frame) * area + i];
  };
  std::vector<float> kept, want;
  for (const Json& frame : entry.at("video_frames_kept").items()) {
    for (size_t channel = 0; channel < 3; ++channel) {
      for (size_t i = 0; i < area; ++i) {
        const float value = pixel(static_cast<size_t>(frame.as_int()), channel, i);
        kept.push_back(std::nearbyint(value * 65535.0f) / 65535.0f);
      }
    }
  }
  for (const float value : c.file_.f32("video_u16_frames")) want.push_back(value / 65535.0f);
  c.suite_.check(c.label("video_u16_frames"), kept, want, kPixels);
  std::vector<float> bytes;
  for (size_t i = 0; i < area; ++i) {
    for (size_t channel = 0; channel < 3; ++channel) bytes.push_back(std::nearbyint(pixel(0, channel, i) * 255.0f));
  }
  c.suite_.check(c.label("frame0_u8"), bytes, c.file_.f32("frame0_u8"), kBytes);
  double sum = 0;
  for (const float value : frames->f32) sum += value;
  c.suite_.check(c.label("video_sum_f64"), {{static_cast<float>(sum)}},
                 {{static_cast<float>(entry.at("video_sum_f64").as_double())}}, kSum);
}

void check_audio(const Case& c, const Json& entry) {
  const StageTensor* const audio = c.got_.find("audio");
  if (audio == nullptr) return c.suite_.fail(c.label("audio"), "the pipeline did not produce it");
  const std::vector<Json>& shape = entry.at("audio_shape").items();
  c.suite_.exact(c.label("audio_shape"), shape[0].as_int() == 2 && shape[1].as_int() == audio->dims[1]);
  for (const char* name : {"audio", "audio_head"}) {
    if (!c.file_.has(name)) continue;
    const int64_t kept = c.file_.info(name).dims[1];
    std::vector<float> head;
    for (int64_t channel = 0; channel < 2; ++channel) {
      const auto start = audio->f32.begin() + channel * audio->dims[1];
      head.insert(head.end(), start, start + std::min(kept, audio->dims[1]));
    }
    c.suite_.check(c.label(name), head, c.file_.f32(name), kAudio);
  }
  double sum = 0, squares = 0;
  for (const float value : audio->f32) sum += value, squares += static_cast<double>(value) * value;
  c.suite_.check(c.label("audio_sum_f64"), {{static_cast<float>(sum)}},
                 {{static_cast<float>(entry.at("audio_sum_f64").as_double())}}, kSum);
  c.suite_.check(c.label("audio_rms"),
                 {{static_cast<float>(std::sqrt(squares / static_cast<double>(audio->f32.size())))}},
                 {{static_cast<float>(entry.at("audio_rms").as_double())}}, kSum);
}

// The packed sequence of the request as the pipeline would build it.
void check_layout(const Case& c, const Resolved& resolved, const Json& entry) {
  LayoutSpec spec;
  for (const int64_t tag : c.file_.i64("text_token_tags")) spec.text_tags.push_back(static_cast<int32_t>(tag));
  spec.blocks = condition_blocks(resolved);
  spec.latent_frames = resolved.latent_frames;
  spec.latent_height = resolved.latent_height;
  spec.latent_width = resolved.latent_width;
  spec.audio_latents = resolved.audio_latents;
  const PackedLayout layout = build_layout(spec);
  c.suite_.exact(c.label("seq_len"), layout.rows == entry.at("seq_len").as_int());
  c.suite_.exact(c.label("num_condition_video_rows"),
                 layout.condition_video_rows == entry.at("num_condition_video_rows").as_int());
  c.suite_.exact(c.label("num_condition_audio_rows"),
                 layout.condition_audio_rows == entry.at("num_condition_audio_rows").as_int());
  const std::vector<int64_t> tags(layout.tags.begin(), layout.tags.end());
  c.suite_.exact(c.label("position_ids"), hex64(poly64(layout.position.data(), layout.rows * 3, 8)) ==
                                              entry.at("position_ids_poly64").as_string());
  c.suite_.exact(c.label("token_tags"),
                 hex64(poly64(tags.data(), layout.rows, 8)) == entry.at("token_tags_poly64").as_string());
}

// ---- the cases of e2e.json
// --------------------------------------------------------------------------------------------
class E2e {
 public:
  explicit E2e(Suite& suite) : suite_(suite), json_(suite.json("e2e.json")) {
    options_.open.paths = {suite.path("toy")};
    options_.tap = static_cast<int>(json_.at("text_encoder_layer").as_int());
    options_.keep = true;
  }

  void run() {
    Engine engine(suite_.ops().context(), suite_.ops(), options_);
    statistics_ = video_vae_config(*engine.files().find(Role::video_vae));
    for (const auto& [name, entry] : json_.at("cases").members()) {
      const std::string path = "e2e_" + name + ".safetensors";
      if (!suite_.exists(path)) {
        suite_.fail(name, path + " is missing");
        continue;
      }
      run_case(engine, name, entry, suite_.open(path));
    }
    run_bf16(engine);
  }

 private:
  ModelFacts facts(const Engine& engine) const {
    ModelFacts facts = engine.facts();
    facts.short_edge = static_cast<int>(json_.at("canvas_short_edge").as_int());
    facts.max_pixels = json_.at("canvas_max_pixels").as_int();
    facts.trained_frames_min = static_cast<int>(json_.at("min_duration_override").as_double() * kFramesPerSecond);
    facts.references.image_short_edge = static_cast<int>(json_.at("reference_image_short_edge").as_int());
    facts.references.video_short_edge = facts.short_edge;
    facts.references.least_seconds = facts.references.least_side = 0;
    return facts;
  }

  Request request_of(const Json& entry) const {
    Request request;
    request.prompt = entry.at("prompt").as_string();
    request.seed = parse_seed(entry.at("seed"));
    request.steps = static_cast<int>(entry.at("grid_points").as_int()) - 1;
    request.frames = static_cast<int>(entry.at("num_frames").as_int());
    if (const Json* width = entry.find("width")) request.width = static_cast<int>(width->as_int());
    if (const Json* height = entry.find("height")) request.height = static_cast<int>(height->as_int());
    request.precision = "f32";
    return request;
  }

  // The pictures of the page where they give the stored keyframes, else the stored keyframes themselves: a picture of
  // the size of the canvas is used untouched.
  void add_keyframes(const Case& c, Request& request) const {
    const int count = c.count("keyframe_u8.");
    std::vector<Image> pictures = listed_media(c.name_);
    for (int i = 0; i < count; ++i) {
      const Image stored = image_of(c.file_, "keyframe_u8." + std::to_string(i));
      Image picture = stored;
      if (static_cast<size_t>(count) == pictures.size()) {
        const Fit fit = i == 0 ? Fit::stretch : Fit::cover;
        const Image fitted = fit_to_canvas(pictures[static_cast<size_t>(i)], stored.width, stored.height, fit);
        if (fitted.rgb == stored.rgb) picture = pictures[static_cast<size_t>(i)];
      }
      const bool last = count == 2 ? i == 1 : c.name_.find("last") != std::string::npos;
      (last ? request.last_picture : request.first_picture) = std::make_shared<Image>(std::move(picture));
    }
  }

  void run_case(Engine& engine, const std::string& name, const Json& entry, GoldenFile file) {
    Case c(suite_, name, std::move(file));
    Request request = request_of(entry);
    add_keyframes(c, request);
    request.references = listed_references(name);
    if (request.references.empty() && entry.find("reference.0") != nullptr) {
      return suite_.fail(name, "no references are known for this case");
    }
    const bool encodes = can_encode(request.prompt);
    if (!encodes) {
      suite_.skip(c.label("prompt_embeds"), kNoTables);
      request.prompt_embeds = suite_.path("e2e_" + name + ".safetensors");
    }
    Resolved resolved;
    RunHooks hooks = collect_into(c.got_);
    hooks.adjust_condition = [&](size_t index, std::vector<float>& latent) {
      const std::string tensor = "condition_latent." + std::to_string(index);
      check_condition(c, tensor, latent, statistics_);
      if (c.file_.has(tensor)) latent = c.file_.f32(tensor);
    };
    try {
      resolved = resolve(request, facts(engine));
      const Control control;
      engine.run(resolved, control, hooks);
    } catch (const Error& error) {
      return suite_.fail(name, error.what());
    }
    if (encodes) {
      c.exact("token_ids");
      c.exact("text_token_tags");
      c.check("prompt_embeds", kText);
    }
    for (int i = 0; i < c.count("keyframe_u8."); ++i) c.exact("keyframe_u8." + std::to_string(i));
    for (size_t i = 0; i < resolved.references.size(); ++i) {
      const std::string tensor = "reference_u8." + std::to_string(i);
      if (c.file_.has(tensor)) c.exact(tensor);
    }
    for (int i = 0; i < c.count("audio_condition_rows."); ++i) {
      c.check("audio_condition_rows." + std::to_string(i), kAudio);
    }
    check_references(suite_, name, resolved, entry);
    check_seen(c, resolved);
    if (c.file_.has("condition_rows")) c.check("condition_rows", kNoise);
    check_layout(c, resolved, entry);
    check_latents(c);
    check_audio(c, entry);
    check_frames(c, entry);
  }

  // Without the tables the golden embeddings stand for the prompt, so that every later stage is still judged.
  static constexpr const char* kNoTables = "this build has no Unicode tables; the golden embeddings are used";
  static bool can_encode(const std::string& text) {
    const bool ascii =
        std::all_of(text.begin(), text.end(), [](char byte) { return static_cast<unsigned char>(byte) < 0x80; });
    return ascii || have_unicode_tables();
  }

  // What the vision tower sees of the keyframes.
  void check_seen(const Case& c, const Resolved& resolved) const {
    for (size_t i = 0; i < resolved.keyframes.size(); ++i) {
      const std::string tensor = "qwen_resized_u8." + std::to_string(i);
      if (!c.file_.has(tensor)) continue;
      const Image& shown = resolved.keyframes[i].picture;
      const Picture picture{shown.width, shown.height, shown.rgb};
      const Picture resized = resize_bicubic(picture, smart_resize_image({shown.height, shown.width}));
      suite_.exact(c.label(tensor), resized.rgb == image_of(c.file_, tensor).rgb);
    }
  }

  // e2e_<case>_bf16: transformer and text encoder in bf16, autoencoders in f32.
  void run_bf16(Engine& engine) {
    const std::string suffix = "_bf16.safetensors";
    for (const std::string& path : suite_.files("e2e_", suffix)) {
      const std::string base = path.substr(4, path.size() - 4 - suffix.size());
      Case c(suite_, base + "_bf16", suite_.open(path));
      const Json* const entry = json_.at("cases").find(base);
      if (entry == nullptr) {
        suite_.fail(c.name_, "e2e.json has no case " + base);
        continue;
      }
      Request request = request_of(*entry);
      request.precision = "bf16";
      const std::string f32 = "e2e_" + base + ".safetensors";
      if (suite_.exists(f32)) add_keyframes(Case(suite_, base, suite_.open(f32)), request);
      const bool encodes = can_encode(request.prompt);
      if (!encodes) {
        suite_.skip(c.label("prompt_embeds"), kNoTables);
        request.prompt_embeds = suite_.path(f32);  // it has the tags too; the difference is within the limit
      }
      try {
        const Control control;
        engine.run(resolve(request, facts(engine)), control, collect_into(c.got_));
      } catch (const Error& error) {
        suite_.fail(c.name_, error.what());
        continue;
      }
      if (encodes) c.check("prompt_embeds", kTextBf16);
      c.check("latents", kLatentsBf16);
      c.check("audio_latents", kLatentsBf16);
    }
  }

  Suite& suite_;
  Json json_;
  EngineOptions options_;
  VideoVaeConfig statistics_;
};

// ---- a folder with references.json: runs of the demo model
// ------------------------------------------------------------
std::string metadata_text(const GoldenFile& file, const char* key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) fail(Code::data, "no metadata %s", key);
  return found->second;
}

Request reference_request(Suite& suite, const std::string& folder, const GoldenFile& file) {
  Request request;
  const auto number = [&](const char* key) { return std::stoi(metadata_text(file, key)); };
  request.prompt = metadata_text(file, "prompt");
  request.seed = parse_seed(Json(metadata_text(file, "seed")));
  request.steps = number("grid_points") - 1;
  request.width = number("width");
  request.height = number("height");
  request.frames = number("frames");
  request.precision = "f32";
  const Json keyframes = Json::parse(metadata_text(file, "keyframes"), "keyframes");
  for (const auto& [which, picture] : keyframes.members()) {
    const std::string path = folder + picture.as_string();
    suite.claim(path);
    (which == "last" ? request.last_frame : request.first_frame) = suite.path(path);
  }
  return request;
}

void check_strip(const Case& c, const std::string& path) {
  const StageTensor* const frames = c.got_.find("frames");
  if (frames == nullptr) return c.suite_.fail(c.label("frames"), "the pipeline did not produce them");
  const Image strip = read_image(c.suite_.path(path));
  const size_t count = static_cast<size_t>(frames->dims[1]);
  const size_t area = static_cast<size_t>(frames->dims[2] * frames->dims[3]);
  std::vector<float> bytes;
  for (size_t frame = 0; frame < count; ++frame) {
    for (size_t i = 0; i < area; ++i) {
      for (size_t channel = 0; channel < 3; ++channel) {
        bytes.push_back(std::nearbyint(frames->f32[(channel * count + frame) * area + i] * 255.0f));
      }
    }
  }
  c.suite_.check(c.label("frames"), bytes, std::vector<float>(strip.rgb.begin(), strip.rgb.end()), kBytes);
}

constexpr const char* kNoPng = "this build reads no PNG";
bool reads_png() { return clip_extensions().find(".mp4") != std::string::npos; }  // both come with FFmpeg

void run_reference(Suite& suite, Engine& engine, const ModelFacts& facts, const std::string& folder,
                   const std::string& name, const VideoVaeConfig& statistics) {
  const std::string path = folder + name;
  Case c(suite, name, suite.open(path + ".safetensors"));
  RunHooks hooks = collect_into(c.got_);
  hooks.adjust_condition = [&](size_t index, std::vector<float>& latent) {
    const std::string tensor = "condition_latent." + std::to_string(index);
    check_condition(c, tensor, latent, statistics);
    if (c.file_.has(tensor)) latent = c.file_.f32(tensor);
  };
  const std::string strip = path + "_frames.png", sound = path + ".wav";
  for (const std::string& beside : {strip, sound}) {  // the sound is `audio` in 16 bits
    if (suite.exists(beside)) suite.claim(beside);
  }
  const Request request = reference_request(suite, folder, c.file_);
  if (!reads_png() && !(request.first_frame + request.last_frame).empty()) return suite.skip(name, kNoPng);
  const Control control;
  engine.run(resolve(request, facts), control, hooks);
  c.exact("token_ids");
  c.exact("text_token_tags");
  c.check("prompt_embeds", kText);
  c.check("noise_video", kNoise);
  c.check("noise_audio_rows", kNoise);
  for (int i = 0; i < c.count("noise_condition."); ++i) c.check("noise_condition." + std::to_string(i), kNoise);
  c.check("latents", kLatents);
  c.check("audio_latents", kLatents);
  c.check("audio", kAudio);
  if (!suite.exists(strip)) return;
  if (reads_png()) {
    check_strip(c, strip);
  } else {
    suite.skip(c.label("frames"), kNoPng);
  }
}

}  // namespace

void run_e2e(Suite& suite) {
  if (suite.exists("e2e.json")) E2e(suite).run();
}

// A repository of the demo model in full precision that has its runs as reference/. What its configs have no key for
// (the tap, the canvas) is as in the embedded demo, which was packed from it.
void run_references(Suite& suite) {
  const std::string folder = "reference/";
  if (!suite.exists(folder + "references.json")) return;
  const ModelFiles demo = open_model_files({});
  EngineOptions options;
  options.keep = true;
  options.open.paths = {suite.path(".")};
  options.tap = static_cast<int>(demo.find(Role::conditioner)->config.at("text_encoder_layer").as_int());
  for (const char* name : {"README.md", "reference", "modular_model_index.json", "h3.json", "eval.json", "transformer",
                           "vae", "audio_vae", "text_encoder", "tokenizer", "processor", "scheduler",
                           "audio_scheduler"}) {
    suite.claim(name);
  }
  const ModelFacts facts = model_facts(demo);
  Engine engine(suite.ops().context(), suite.ops(), options);
  const VideoVaeConfig statistics = video_vae_config(*engine.files().find(Role::video_vae));
  const Json list = suite.json(folder + "references.json");
  for (const Json& entry : list.items()) {
    const std::string name = entry.at("file").as_string();
    try {
      run_reference(suite, engine, facts, folder, name, statistics);
    } catch (const Error& error) {
      suite.fail(name, error.what());
    }
  }
}

}  // namespace h3
