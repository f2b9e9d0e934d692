// From a body to a job that can be queued: media read, values checked against the model.
#include "apps/server/app.h"
#include "apps/server/body.h"
#include "apps/server/fetch.h"
#include "base/error.h"
#include "base/hash.h"

namespace h3::server {
namespace {

constexpr size_t kMostMediaBytes = size_t{32} << 20;

std::string ending_of(const std::string& bytes) {
  if (bytes.rfind("\x89PNG", 0) == 0) return ".png";
  if (bytes.rfind("\xff\xd8", 0) == 0) return ".jpg";
  if (bytes.rfind("RIFF", 0) == 0) return ".webp";
  if (bytes.size() > 1 && bytes[0] == 'P' && (bytes[1] == '5' || bytes[1] == '6')) return ".ppm";
  return ".bin";
}

std::string load(const App& app, const MediaSource& source) {
  const auto refuse = [&](int status, const char* code, const std::string& reason,
                          const std::string& allowed) -> ApiError {
    return {status, code, source.field + ": " + reason, source.field, source.content.substr(0, 200), allowed, 0};
  };
  std::string bytes;
  switch (source.kind) {
    case MediaSource::Kind::bytes: bytes = source.content; break;
    case MediaSource::Kind::path: bytes = app.media.read(source.content, source.field, kMostMediaBytes); break;
    case MediaSource::Kind::url: {
      if (!app.options.allow_urls) {
        throw refuse(403, "urls_not_allowed", "addresses are not fetched here, send the picture itself",
                     "an upload, a data URL or base64");
      }
      FetchOptions options;
      options.public_only = true;
      options.most_bytes = kMostMediaBytes;
      try {
        Fetched fetched = fetch(source.content, options);
        if (fetched.status != 200)
          throw refuse(400, "fetch_failed", strf("the address answered %d", fetched.status), "");
        bytes = std::move(fetched.body);
      } catch (const Error& error) {
        throw refuse(400, "fetch_failed", error.what(), "a public http or https address");
      }
      break;
    }
  }
  if (bytes.empty() || bytes.size() > kMostMediaBytes) {
    throw ApiError{400,
                   "invalid_media",
                   source.field + strf(": it has %zu bytes, give a picture of 1 to %zu", bytes.size(), kMostMediaBytes),
                   source.field,
                   std::to_string(bytes.size()),
                   strf("1 to %zu bytes", kMostMediaBytes),
                   0};
  }
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

void take_picture(App& app, const MediaSource& source, bool last, Draft& draft, Job& job, Hold& hold) {
  const std::string bytes = load(app, source);
  Image picture;
  try {
    picture = read_image(std::as_bytes(std::span(bytes)), source.field);
  } catch (const Error& error) {
    throw ApiError{400, "invalid_media", source.field + ": " + error.what(), source.field, "", "PNG, JPEG, WebP or PPM",
                   0};
  }
  const std::string file = app.book.store_input(bytes, ending_of(bytes));
  hold.files.push_back(file);
  job.inputs[last ? "last_frame" : "first_frame"] = file;
  Request& request = draft.request;
  (last ? request.last_frame : request.first_frame) = app.book.input(file);
  (last ? request.last_picture : request.first_picture) = std::make_shared<const Image>(std::move(picture));
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
  const bool pictures = draft.first || draft.last;
  std::string problem;
  if (draft.task == "ref2va") problem = "this server takes keyframes, not references; use fl2va with a picture";
  if (draft.task == "t2va" && pictures) problem = "pictures are given; use fl2va or drop them";
  if (draft.task == "fl2va" && !pictures) problem = "no keyframe is given; add input_reference or use t2va";
  if (problem.empty()) return;
  throw ApiError{400,    "invalid_value", "task: \"" + draft.task + "\" is not possible, " + problem,
                 "task", draft.task,      pictures ? "fl2va" : "t2va",
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

void describe(const Resolved& resolved, Job& job) {
  job.request = resolved.request.to_json();
  job.resolved = resolved.to_json();
  job.resolved.set("task", name_of(resolved.task));
  job.width = resolved.width;
  job.height = resolved.height;
  job.frames = resolved.output_frames;
  job.evaluations = resolved.evaluations;
  job.seed = resolved.seed;
  for (const std::string& note : resolved.notes) job.warnings.push_back(note);
  for (const std::string& warning : resolved.warnings) job.warnings.push_back(warning);
}

}  // namespace

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
    ModelFacts facts = text_only ? text_facts(app.facts) : app.facts;
    // The encoder may be elsewhere; whether it answers is known when the job runs.
    if (app.conditioner.enabled()) facts.conditioner = facts.tokenizer = facts.vision = true;
    intake.resolved = resolve(draft.request, facts);
  } catch (const Error& error) {
    throw to_api_error(error, draft.spelled);
  }
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
