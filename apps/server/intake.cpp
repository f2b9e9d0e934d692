// From a body to a job that can be queued: media read, values checked against the model.
#include "apps/server/app.h"
#include "apps/server/body.h"
#include "apps/server/fetch.h"
#include "apps/server/media_types.h"
#include "base/error.h"
#include "base/hash.h"
#include "pipeline/conditions.h"
#include "pipeline/references.h"

namespace h3::server {
namespace {

[[noreturn]] void refuse_bytes(const MediaSource& source, size_t bytes, size_t most_bytes) {
  throw ApiError{400,
                 "invalid_media",
                 source.field + strf(": it has %zu bytes, give a file of 1 to %zu", bytes, most_bytes),
                 source.field,
                 std::to_string(bytes),
                 strf("1 to %zu bytes", most_bytes),
                 0};
}

// The bytes of `source`: those that came with the request, or what is read or fetched into `room`.
std::string_view load(const App& app, const MediaSource& source, std::string& room,
                      size_t most_bytes = kMostFileBytes) {
  const auto refuse = [&](int status, const char* code, const std::string& reason,
                          const std::string& allowed) -> ApiError {
    return {status, code, source.field + ": " + reason, source.field, source.content.substr(0, 200), allowed, 0};
  };
  switch (source.kind) {
    case MediaSource::Kind::bytes: break;
    case MediaSource::Kind::path: room = app.media.read(source.content, source.field, most_bytes); break;
    case MediaSource::Kind::url: {
      if (!app.options.allow_urls) {
        throw refuse(403, "urls_not_allowed", "addresses are not fetched here, send the file itself",
                     "an upload, a data URL or base64");
      }
      FetchOptions options;
      options.public_only = true;
      options.most_bytes = most_bytes;
      try {
        Fetched fetched = fetch(source.content, options);
        if (fetched.status != 200)
          throw refuse(400, "fetch_failed", strf("the address answered %d", fetched.status), "");
        room = std::move(fetched.body);
      } catch (const Error& error) {
        throw refuse(400, "fetch_failed", error.what(), "a public http or https address");
      }
      break;
    }
  }
  const std::string_view bytes = source.kind == MediaSource::Kind::bytes ? source.bytes() : std::string_view(room);
  if (bytes.empty() || bytes.size() > most_bytes) refuse_bytes(source, bytes.size(), most_bytes);
  return bytes;
}

// Everything that is stored while a request is taken in is given back when it fails.
struct Hold {
  JobBook& book;
  std::vector<std::string> files;
  ~Hold() {
    for (const std::string& file : files) book.release_input(file);
  }
};

std::string store(App& app, std::string_view bytes, const std::string& field, Job& job, Hold& hold) {
  const std::string file = app.book.store_input(bytes, ending_of(bytes));
  hold.files.push_back(file);
  job.inputs[field] = file;
  return file;
}

void take_picture(App& app, const MediaSource& source, bool last, Draft& draft, Job& job, Hold& hold) {
  std::string room;
  const std::string_view bytes = load(app, source, room);
  Image picture;
  try {
    const std::lock_guard lock(app.decoding);
    picture = read_image(std::as_bytes(std::span(bytes)), source.field);
  } catch (const Error& error) {
    throw ApiError{400, "invalid_media", source.field + ": " + error.what(), source.field, "", "PNG, JPEG, WebP or PPM",
                   0};
  }
  const std::string file = store(app, bytes, last ? "last_frame" : "first_frame", job, hold);
  Request& request = draft.request;
  (last ? request.last_frame : request.first_frame) = app.book.input(file);
  (last ? request.last_picture : request.first_picture) = std::make_shared<const Image>(std::move(picture));
}

// What tables and messages call a file: one line, no folders. Files without a name go by their field.
std::string shown_name(const MediaSource& source) {
  std::string name;
  for (const char c : source.name.substr(source.name.find_last_of("/\\") + 1)) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) name += c;
  }
  constexpr size_t kMost = 100;
  if (name.size() > kMost) {
    size_t end = kMost;
    while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xc0) == 0x80) --end;  // not inside a letter
    name.resize(end);
  }
  return name.empty() ? source.field : name;
}

Reference::Kind kind_of(const std::string& ending, const std::string& path, const MediaSource& source) {
  if (media_type_of(ending).rfind("image/", 0) == 0 && ending != ".gif") return Reference::Kind::image;
  if (ending == ".ppm") return Reference::Kind::image;
  try {
    return open_clip_reader(path)->info().width > 0 ? Reference::Kind::video : Reference::Kind::audio;
  } catch (const Error&) {
    throw ApiError{400,
                   "invalid_media",
                   source.field + ": it is no picture, clip or sound that can be read",
                   source.field,
                   "",
                   "a picture, a clip or a sound",
                   0};
  }
}

// Counts, before anything is fetched or stored. Where only the bytes tell what a file is, that is how many there are in
// all; resolve() counts each kind.
void check_counts(const App& app, const Draft& draft) {
  ReferenceLimits limits = app.facts.references;
  std::vector<Reference> list;
  for (const ReferenceSource& source : draft.references) {
    Reference reference;
    reference.kind = source.kind.value_or(Reference::Kind::image);
    reference.path = shown_name(source.media);
    list.push_back(std::move(reference));
    if (!source.kind) limits.images = static_cast<int>(draft.references.size());
  }
  check_reference_list(list, limits);
}

void take_references(App& app, Draft& draft, Job& job, Hold& hold) {
  for (size_t i = 0; i < draft.references.size(); ++i) {
    const ReferenceSource& source = draft.references[i];
    draft.spelled[strf("references[%zu]", i)] = source.media.field;
    draft.spelled.emplace("references", source.media.field.substr(0, source.media.field.find_first_of("[.")));
  }
  try {
    check_counts(app, draft);
  } catch (const Error& error) {
    throw to_api_error(error, draft.spelled);
  }
  for (size_t i = 0; i < draft.references.size(); ++i) {
    const ReferenceSource& source = draft.references[i];
    const bool clip = source.kind.value_or(Reference::Kind::video) == Reference::Kind::video;
    std::string room, sound;
    const std::string_view bytes = load(app, source.media, room, clip ? kMostClipBytes : kMostFileBytes);
    const std::string field = strf("reference_%zu", i + 1);
    Reference reference;
    reference.path = app.book.input(store(app, bytes, field, job, hold));
    reference.name = shown_name(source.media);
    reference.kind = source.kind ? *source.kind : kind_of(ending_of(bytes), reference.path, source.media);
    if (reference.kind != Reference::Kind::video && bytes.size() > kMostFileBytes) {
      refuse_bytes(source.media, bytes.size(), kMostFileBytes);
    }
    reference.silent = source.silent;
    if (source.sound) {
      const std::string_view other = load(app, *source.sound, sound, kMostClipBytes);
      reference.sound = app.book.input(store(app, other, field + "_sound", job, hold));
      reference.sound_name = shown_name(*source.sound);
    }
    draft.request.references.push_back(std::move(reference));
  }
  draft.request.measure_only = true;
  draft.request.decoding = &app.decoding;
}

void check_prompt(const Draft& draft) {
  if (draft.request.prompt.find_first_not_of(" \t\r\n") != std::string::npos) return;
  throw ApiError{400,
                 "invalid_value",
                 "prompt: it is empty, describe the clip, for example \"a red ball bounces\"",
                 "prompt",
                 draft.request.prompt.substr(0, 20),
                 "text",
                 0};
}

void check_task(const Draft& draft) {
  const bool pictures = draft.first || draft.last, references = !draft.references.empty();
  const char* const fitting = references ? "ref2va" : pictures ? "fl2va" : "t2va";
  if (draft.task.empty() || draft.task == fitting) return;
  std::string problem = "no keyframe is given; add input_reference";
  if (draft.task == "ref2va") problem = "no reference is given; add conditions with role reference";
  if (draft.task == "t2va") problem = "pictures are given; drop them";
  if (draft.task == "fl2va" && references) problem = "references are given; drop them";
  throw ApiError{
      400,    "invalid_value", "task: \"" + draft.task + "\" is not possible, " + problem + " or use " + fitting,
      "task", draft.task,      fitting,
      0};
}

void check_model(const App& app, Draft& draft) {
  if (draft.model.empty() || draft.model == app.facts.name) return;
  std::string lower = draft.model;
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (lower.find("h3") != std::string::npos) return;
  if (draft.strict) {
    throw ApiError{
        404,     "model_not_found",         "model: \"" + draft.model.substr(0, 80) + "\" is not served here",
        "model", draft.model.substr(0, 80), app.facts.name,
        0};
  }
  draft.warnings.push_back("model: ignored, this server has one model (" + app.facts.name + ")");
}

std::string known_adapters(const App& app) {
  std::string names;
  for (const auto& [name, file] : app.facts.turbo_files) names += (names.empty() ? "" : ", ") + name;
  return names.empty() ? "none, the server was started without --turbo-lora NAME=FILE" : names;
}

// Clients choose among the files the operator named; a path of theirs is only a name here.
std::string adapter_file(const App& app, const AdapterName& adapter) {
  const auto& files = app.facts.turbo_files;
  if (adapter.name.empty() && !files.empty()) return files.begin()->first;
  if (files.count(adapter.name) > 0) return adapter.name;
  for (const auto& [name, file] : files) {
    const std::string leaf = file.substr(file.find_last_of('/') + 1);
    if (adapter.name == leaf || adapter.name == leaf.substr(0, leaf.rfind('.'))) return name;
  }
  const std::string value = adapter.name.empty() ? "true" : "\"" + adapter.name.substr(0, 80) + "\"";
  throw ApiError{400,
                 "invalid_value",
                 adapter.field + ": " + value + " is not an adapter of this server; allowed: " + known_adapters(app),
                 adapter.field,
                 value,
                 known_adapters(app),
                 0};
}

void take_adapters(const App& app, Draft& draft, Job& job) {
  if (draft.turbo) {
    job.turbo = adapter_file(app, *draft.turbo);
    draft.request.turbo = job.turbo;
    draft.spelled["turbo"] = draft.turbo->field;
  }
  Json list = Json::array();
  for (const AdapterName& adapter : draft.adapters) {
    const std::string& file = app.facts.turbo_files.at(adapter_file(app, adapter));
    list.push(Json::object({{"path", file}, {"strength", adapter.strength}}));
    draft.spelled["adapters"] = draft.spelled["lora"] = adapter.field;
  }
  if (!draft.adapters.empty()) set_field(draft.request, "adapters", list);
}

// The same request has the same fingerprint, whatever way it was written down and sent.
std::string fingerprint_of(const Draft& draft, const Job& job) {
  std::string text = draft.request.to_json().dump() + "|" + job.format + "|" + job.output + (job.rewrite ? "|r" : "");
  for (const auto& [field, file] : job.inputs) text += "|" + field + file;
  return strf("%016llx", static_cast<unsigned long long>(fnv1a64(std::as_bytes(std::span(text)))));
}

// The table of references as clients see it.
Json references_json(const Resolved& resolved) {
  Json list = Json::array();
  for (size_t i = 0; i < resolved.references.size(); ++i) {
    const ReferenceInput& input = resolved.references[i];
    const Reference& reference = resolved.request.references[i];
    const auto text = [](const std::string& value) { return value.empty() ? Json() : Json(value); };
    list.push(Json::object({{"type", name_of(input.kind)},
                            {"name", input.name},
                            {"tag", text(input.tag)},
                            {"is", text(input.description)},
                            {"sound_tag", text(input.sound_tag)},
                            {"sound_name", text(input.sound_name)},
                            {"sound_is", text(input.sound_description)},
                            {"silent", reference.silent}}));
  }
  return list;
}

void describe(const Resolved& resolved, Job& job) {
  job.request = resolved.request.to_json();
  job.resolved = resolved.to_json();
  job.resolved.set("task", name_of(resolved.task));
  job.references = references_json(resolved);
  if (!resolved.references.empty()) {
    for (const LayoutBlock& block : condition_blocks(resolved)) {
      const int64_t patches = static_cast<int64_t>(block.latent_height / 2) * (block.latent_width / 2);
      job.reference_rows += block.latent_frames * patches + 2 * block.audio_latents;
    }
  }
  job.width = resolved.width;
  job.height = resolved.height;
  job.frames = resolved.output_frames;
  job.evaluations = resolved.evaluations;
  job.seed = resolved.seed;
  for (const std::string& note : resolved.notes) job.warnings.push_back(note);
  for (const std::string& warning : resolved.warnings) job.warnings.push_back(warning);
}

}  // namespace

ModelFacts facts_of(const App& app) {
  ModelFacts facts = app.facts;
  const Json model = app.dispatcher.state().model;
  // Files alone cannot tell what the worker's device computes. Before it is ready, a job may wait for what it says.
  facts.multiplies_fp8 = true;
  if (!model.is_object()) return facts;
  facts.fp8 = facts.fp8 && model.at("fp8").as_bool();
  facts.multiplies_fp8 = model.at("multiplies_fp8").as_bool();
  facts.eight_bit_refused = model.at("eight_bit_refused").as_string();
  facts.nvfp4_refused = model.at("nvfp4_refused").as_string();
  return facts;
}

Intake take_in(App& app, const HttpRequest& request, bool text_only) {
  Draft draft = draft_of(parse_body(request.header("content-type"), request.body));
  Intake intake;
  Job& job = intake.job;
  Hold hold{app.book, {}};
  check_prompt(draft);
  check_task(draft);
  check_model(app, draft);
  if (draft.rewrite && !app.rewriter.enabled()) {
    throw ApiError{400,
                   "invalid_value",
                   "rewrite_prompt: this server was started without a rewriter",
                   "rewrite_prompt",
                   "true",
                   "false",
                   0};
  }
  take_adapters(app, draft, job);
  if (!draft.output.empty()) app.outputs.check_writable(draft.output, "output");
  if (draft.first) take_picture(app, *draft.first, false, draft, job, hold);
  if (draft.last) take_picture(app, *draft.last, true, draft, job, hold);
  if (!draft.references.empty()) take_references(app, draft, job, hold);
  job.id = new_job_id();
  job.created = now_ms();
  job.asked = draft.canonical;
  job.prompt = draft.request.prompt;
  job.output = draft.output;
  job.user = draft.user;
  job.rewrite = draft.rewrite;
  job.text_only = text_only;
  job.warnings = draft.warnings;
  job.format = text_only ? "safetensors" : draft.format;
  if (job.format.empty()) {
    const size_t dot = draft.output.find_last_of('.');
    const std::string ending = dot == std::string::npos ? "" : draft.output.substr(dot + 1);
    const std::string standard = default_clip_name();  // "h3.mp4"
    job.format =
        ending == "webm" || ending == "avi" || ending == "mp4" ? ending : standard.substr(standard.find('.') + 1);
  }
  try {
    ModelFacts facts = text_only ? text_facts(facts_of(app)) : facts_of(app);
    // The encoder may be elsewhere; whether it answers is known when the job runs.
    if (app.conditioner.enabled()) facts.conditioner = facts.tokenizer = facts.vision = true;
    intake.resolved = resolve(draft.request, facts);
  } catch (const Error& error) {
    throw to_api_error(error, draft.spelled);
  }
  intake.resolved.request.decoding = nullptr;
  describe(intake.resolved, job);
  job.fingerprint = fingerprint_of(draft, job);
  intake.held = std::move(hold.files);
  hold.files.clear();
  return intake;
}

JobBook::Accepted submit(App& app, const HttpRequest& request, Intake intake) {
  const Hold hold{app.book, std::move(intake.held)};
  intake.job.idempotency_key = request.header("idempotency-key");
  if (intake.job.idempotency_key.size() > 255) {
    throw ApiError{400,
                   "invalid_value",
                   "Idempotency-Key: it is longer than 255 characters",
                   "Idempotency-Key",
                   intake.job.idempotency_key.substr(0, 40),
                   "up to 255 characters",
                   0};
  }
  try {
    JobBook::Accepted accepted = app.book.submit(std::move(intake.job));
    if (!accepted.replayed) app.metrics.job_accepted();
    return accepted;
  } catch (const ApiError& error) {
    if (error.status == 503) app.metrics.job_refused();
    throw;
  }
}

}  // namespace h3::server
