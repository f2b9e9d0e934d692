// What a user asks for, before and after validation. Every front end (command line, server, tests) goes through
// resolve(): there is one validator, so one request means the same everywhere.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "media/media.h"

namespace h3 {

// Where what the clip shows does not matter: measurements, plans of kernels.
inline constexpr const char* kAnyPrompt = "a paper boat on a river";

enum class Compute : uint8_t;  // ops/ops.h
class PromptLinter;            // pipeline/prompt_lint.h

// Limits of a request. The trained range is narrower and only warned about (ModelFacts).
inline constexpr int kMinSide = 32, kMaxSide = 4096, kSideStep = 32;
inline constexpr int kMaxFrames = 1450;       // 17 * 85 + 5, one minute
inline constexpr int kMaxEvaluations = 1000;  // the reference grid has no duplicate points up to here

// -1 on the command line and in JSON means "draw one".
struct Seed {
  uint64_t value = 0;
  bool random = false;
  bool operator==(const Seed&) const = default;
};

using Dumps = std::vector<std::pair<std::string, std::string>>;  // STAGE, FILE

// One reference, in the order the model reads them: {"type": "video", "path": "a.mp4", "silent": true}.
struct Reference {
  enum class Kind : uint8_t { image, video, audio } kind = Kind::image;
  std::string path;
  std::string sound;             // video: the file whose sound stands in for its own
  bool silent = false;           // video: its sound is not used
  std::string name, sound_name;  // what the user calls path and sound, for tables and messages; "" = the paths
  // Already decoded (tests, callers without files); wins over the path, which is then a name for messages.
  std::shared_ptr<const Image> picture;
  std::shared_ptr<const ClipData> clip;  // of a video, and of a sound
};
const char* name_of(Reference::Kind kind);  // image, video, audio

// An adapter to use, beside the model.
struct AdapterRequest {
  std::string path;
  double strength = 1;
  bool operator==(const AdapterRequest&) const = default;
};

AdapterRequest parse_adapter(const std::string& text);  // "PATH" or "PATH:STRENGTH"

struct Acceleration;  // pipeline/acceleration.h

// As given; unset fields are filled in from the model by resolve().
struct Request {
  std::string prompt;
  std::string prompt_embeds;  // safetensors written by --dump text=FILE
  std::optional<int> width, height, short_edge, frames, steps, quality;
  std::optional<double> seconds, video_shift, audio_shift;
  std::string aspect;  // "16:9"
  std::optional<bool> exact, audio, stock_sampler;
  std::optional<Seed> seed;
  std::string first_frame, last_frame, fit;  // fit: stretch | cover | contain
  std::vector<Reference> references;
  std::string ref_image_size;      // official | match | max
  std::optional<bool> ref_silent;  // no reference video brings its sound
  std::optional<bool> strict;      // doubts about references and their tags end the request
  std::string profile, sampler, scheduler;
  std::string precision, vae_precision;
  std::string preset;                    // exact | balanced | ultra | turbo
  std::string cache, policy_trace;       // sampling/policy.h: a step policy, or its decisions
  std::string attention;                 // dense | 8bit | sparse..., pipeline/acceleration.h
  std::string turbo;                     // name of an adapter of ModelFacts::turbo_files, or none
  std::vector<AdapterRequest> adapters;  // in order
  std::string output, wav, frames_dir;
  Dumps dumps;

  // Not part of the JSON form: pictures that are already decoded (uploads, tests) and win over the paths, and where a
  // field came from when "given" is not precise enough ("environment H3_STEPS").
  std::shared_ptr<const Image> first_picture, last_picture;
  std::map<std::string, std::string> origin;
  // References are read, checked and described, and their pictures are not kept: for a request that runs elsewhere.
  bool measure_only = false;
  // Held while the file of one reference is decoded: callers on many threads decode one at a time. null = no limit.
  std::mutex* decoding = nullptr;

  Json to_json() const;  // only what is set
  // Error(usage) for unknown keys (with the nearest known one) and for values of the wrong type.
  static Request from_json(const Json& json);
};

// Sets one field from a JSON value; `key` is a name of request_keys(). Error(usage) naming key, value and what is
// allowed.
void set_field(Request& request, const std::string& key, const Json& value);
std::vector<std::string> request_keys();
Seed parse_seed(const Json& value);
Json seed_json(uint64_t seed);  // a string above the range of a JSON integer

// What the release accepts as references (its model card; spec dit 4). Seconds are those of the files.
struct ReferenceLimits {
  int images = 9, videos = 3, sounds = 3, total = 12;
  double least_seconds = 2, most_seconds = 15;  // of a clip or sound; all clips together, and all sounds, at most this
  int least_side = 256, most_side = 5760;       // of pictures and clips, in pixels
  int image_short_edge = 2048;                  // what pictures are brought to
  int video_short_edge = 768;                   // what clips are brought to, within ModelFacts::max_pixels
};

// What a loaded model says about itself: the defaults of a request and what can be asked of it.
struct ModelFacts {
  std::string name = "base checkpoint";  // "default of the base checkpoint"
  int width = 960, height = 544, frames = 124, evaluations = 27;
  uint64_t seed = 42;
  double video_shift = 12, audio_shift = 3;
  std::string profile = "diffusers";
  std::string scheduler, sampler;  // of a distilled model; empty = the profile's
  std::string precision = "f32";
  std::string eight_bit_refused;    // why attention does not run in eight bits; empty = it does
  bool fp8 = false;                 // the transformer is stored in fp8 and computed on a card
  bool multiplies_fp8 = false;      // the device does
  bool nvfp4 = false;               // the transformer has matrices in nvfp4
  std::string nvfp4_refused;        // why the device does not multiply them as they are; empty = it does
  int short_edge = 0;               // of canvases made from an aspect; 0 = that of the default size
  int64_t max_pixels = 768 * 1344;  // cap of such canvases
  int trained_frames_min = 124, trained_frames_max = 362;
  int64_t trained_pixels = 768 * 1344;
  std::vector<std::string> adapters;               // given among the model files: used unless others are asked for
  std::map<std::string, std::string> turbo_files;  // adapters that requests may name: name, file
  bool lora_partial = false;                       // tensors of adapters that fit nothing are left out
  bool conditioner = true, vision = true, tokenizer = true;
  bool video_decoder = true, video_encoder = true, audio_decoder = true, audio_encoder = true;
  // The release has two transformers: one renders from prompts and keyframes, the other from references.
  bool dit = true, dit_ref = true;
  std::string only_dit;  // where just one is there: "a.safetensors (declared by model_index.json)"
  ReferenceLimits references;
  std::shared_ptr<const PromptLinter> linter;  // of its text encoder; null = prompts are not looked at
};

// The same model as somebody sees it who only wants prompt embeddings: parts that come after the text encoder do not
// matter.
ModelFacts text_facts(ModelFacts facts);

enum class Task : uint8_t { t2va, fl2va, ref2va };
const char* name_of(Task task);

// A keyframe on the canvas, as both the video autoencoder and the conditioner see it.
struct Keyframe {
  bool last = false;
  std::string path;  // as given; empty for an uploaded picture
  Image picture;
};

// A reference as the model takes it (spec dit 4, conditioner 3.4, vae 8.2, 13).
struct ReferenceInput {
  Reference::Kind kind = Reference::Kind::image;
  std::string path;                          // as given; a name for one that was given decoded
  std::string name;                          // for the user: Reference::name, else path
  std::string sound_name;                    // the same for the file its sound comes from
  std::string tag, sound_tag;                // "<Video 1>", "<Audio 2>"; empty where it has no picture, no sound
  int width = 0, height = 0;                 // of its frames, multiples of 32
  std::vector<std::vector<uint8_t>> frames;  // RGB [height, width, 3]: one of an image; of a video all at 24 per second
  int encoded_frames = 0;                    // the first of them that the video autoencoder sees
  std::vector<float> sound;                  // [2, samples] at 32 kHz
  std::string description;                   // "3.00 s of 640x360 at 30 fps -> 72 frames of 1344x768"
  std::string sound_description;             // "3.00 s at 44100 Hz mono -> 3.00 s at 32000 Hz stereo"

  int64_t samples() const { return static_cast<int64_t>(sound.size()) / 2; }
};

// One resolved value and why it has it, for reports: {"frames", "39", "snapped up from 35"}.
struct Choice {
  std::string field, value, from;
};

// A file the result depends on, by content: a repeated run can tell that it changed.
struct InputFile {
  std::string field, path;
  uint64_t hash = 0;  // fnv1a64 of the decoded RGB for pictures, of the bytes otherwise
};

struct Resolved {
  Request request;  // explicit in every field that changes the result: running it again gives the same clip
  Task task = Task::t2va;
  int width = 0, height = 0;
  int frames = 0;              // on the 17k + 5 grid
  int output_frames = 0;       // fewer with `exact`
  int64_t output_samples = 0;  // per channel
  int latent_frames = 0, latent_height = 0, latent_width = 0, audio_latents = 0;
  uint64_t seed = 0;
  int evaluations = 0;
  double video_shift = 0, audio_shift = 0;
  std::string profile, sampler, scheduler;
  bool stock_sampler = false;
  Compute compute{}, vae_compute{};
  std::shared_ptr<const Acceleration> acceleration;
  std::vector<Keyframe> keyframes;  // first, last
  std::vector<ReferenceInput> references;
  std::vector<InputFile> inputs;
  std::vector<Choice> choices;
  int64_t prompt_tokens = -1;         // rows of the text encoder, pictures included; -1 = not counted
  std::vector<std::string> notes;     // what was changed: snapping
  std::vector<std::string> warnings;  // what may disappoint

  Json to_json() const;  // values and where each came from
};

// Validates, fills in and snaps. Reads the keyframes, because the canvas may follow from them, and the references.
// Error(usage | io | data) with one line: the field, its value, what is allowed, one suggestion.
Resolved resolve(const Request& request, const ModelFacts& facts);

// What each tag of the prompt stands for, a line each: "<Picture 1> = a.png (800x600 -> 2720x2048)".
std::vector<std::string> reference_table(const Resolved& resolved);

// "STAGE" names that --dump takes.
std::span<const char* const> dump_stages();

}  // namespace h3
