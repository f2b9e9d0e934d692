// What the server says about itself.
#include <cmath>

#include "apps/server/routes.h"
#include "apps/server/web.h"
#include "base/error.h"
#include "pipeline/acceleration.h"
#include "pipeline/report.h"

namespace h3::server {
namespace {

constexpr const char* kAspects[] = {"21:9", "16:9", "4:3", "1:1", "3:4", "9:16"};

// The canvases and lengths that come out as they are asked for: of each aspect at the model's own short edge and at the
// short edges that people know, as far as the model was trained.
Json canvases(const ModelFacts& facts) {
  std::vector<int> edges = {facts.short_edge > 0 ? facts.short_edge : std::min(facts.width, facts.height)};
  for (const int edge : {480, 544, 768}) {
    if (static_cast<int64_t>(edge) * edge <= facts.max_pixels && edge != edges[0]) edges.push_back(edge);
  }
  Json list = Json::array();
  for (const int edge : edges) {
    for (const char* aspect : kAspects) {
      Request request;
      request.prompt = "x";
      request.aspect = aspect;
      request.short_edge = edge;
      try {
        ModelFacts whole = facts;  // parts that are missing do not matter here
        whole.dit = whole.conditioner = whole.tokenizer = whole.video_decoder = whole.audio_decoder = true;
        const Resolved resolved = resolve(request, whole);
        list.push(Json::object(
            {{"aspect_ratio", aspect}, {"short_edge", edge}, {"width", resolved.width}, {"height", resolved.height}}));
      } catch (const Error&) {  // not possible with this model
      }
    }
  }
  return list;
}

Json lengths(const ModelFacts& facts) {
  Json list = Json::array();
  for (int frames = 5; frames <= facts.trained_frames_max; frames += 17) {
    if (frames < facts.trained_frames_min && frames != facts.frames) continue;
    list.push(Json::object({{"num_frames", frames}, {"seconds", std::round(frames / 24.0 * 100) / 100}}));
  }
  return list;
}

Json reference_limits(const ReferenceLimits& limits) {
  return Json::object({{"images", limits.images},
                       {"videos", limits.videos},
                       {"audios", limits.sounds},
                       {"total", limits.total},
                       {"min_seconds", limits.least_seconds},
                       {"max_seconds", limits.most_seconds},
                       {"min_side", limits.least_side},
                       {"max_side", limits.most_side}});
}

Json turbos(const App& app) {
  Json list = Json::array();
  for (const auto& [name, file] : app.facts.turbo_files) list.push(name);
  return list;
}

Json model_json(const App& app) {
  const ModelFacts facts = facts_of(app);
  const WorkerState worker = app.dispatcher.state();
  Json tasks = Json::array();
  const bool sees = facts.vision && facts.video_encoder;
  if (facts.dit) tasks.push("t2va");
  if (facts.dit && sees) tasks.push("fl2va");
  if (facts.dit_ref && sees) tasks.push("ref2va");
  Json json = Json::object({{"id", facts.name}, {"object", "model"}, {"owned_by", "h3"}, {"created", 0}});
  json.set("tasks", std::move(tasks)).set("device", worker.device.empty() ? Json() : Json(worker.device));
  json.set("files", worker.model_ids);
  json.set("defaults", Json::object({{"width", facts.width},
                                     {"height", facts.height},
                                     {"num_frames", facts.frames},
                                     {"num_inference_steps", facts.evaluations},
                                     {"flow_shift", facts.video_shift},
                                     {"audio_flow_shift", facts.audio_shift},
                                     {"seed", seed_json(facts.seed)},
                                     {"precision", facts.precision},
                                     {"profile", facts.profile}}));
  json.set("limits", Json::object({{"min_side", kMinSide},
                                   {"max_side", kMaxSide},
                                   {"side_step", kSideStep},
                                   {"max_frames", kMaxFrames},
                                   {"max_steps", kMaxEvaluations},
                                   {"trained_pixels", facts.trained_pixels},
                                   {"trained_frames_min", facts.trained_frames_min},
                                   {"trained_frames_max", facts.trained_frames_max},
                                   {"max_body_bytes", static_cast<int64_t>(app.options.http.body_bytes)},
                                   {"max_file_bytes", static_cast<int64_t>(kMostFileBytes)},
                                   {"max_clip_bytes", static_cast<int64_t>(kMostClipBytes)},
                                   {"references", reference_limits(facts.references)}}));
  json.set("canvases", canvases(facts)).set("lengths", lengths(facts)).set("fps", 24);
  Json presets = Json::array();
  for (const std::string& preset : preset_names()) {
    if (preset != "turbo" || !facts.turbo_files.empty()) presets.push(preset);
  }
  json.set("presets", std::move(presets)).set("turbos", turbos(app));
  Json precisions = Json::array({"f32", "bf16", "int8"});
  if (facts.fp8) precisions.push("fp8");
  if (facts.nvfp4 && facts.nvfp4_refused.empty()) precisions.push("nvfp4");
  json.set("precisions", std::move(precisions));
  json.set("output_formats", clip_extensions()).set("rewriter", app.rewriter.enabled());
  return json;
}

}  // namespace

HttpResponse get_ready(App& app, const HttpRequest&) {
  const WorkerState worker = app.dispatcher.state();
  Json json = Json::object({{"ready", worker.ready}, {"model", app.facts.name}});
  json.set("device", worker.device.empty() ? Json() : Json(worker.device));
  json.set("available_turbos", turbos(app)).set("current_turbo", worker.turbo.empty() ? Json() : Json(worker.turbo));
  json.set("jobs_waiting", app.book.waiting()).set("running", app.book.running());
  json.set("max_queue", app.options.book.max_queue).set("worker_restarts", worker.restarts);
  json.set("version", engine_version()).set("needs_key", !app.options.api_key.empty());
  if (!worker.ready) json.set("problem", worker.problem);
  return json_response(json, worker.ready ? 200 : 503);
}

HttpResponse get_health(App&, const HttpRequest&) {
  return json_response(Json::object({{"status", "ok"}, {"version", engine_version()}}));
}

HttpResponse get_metrics(App& app, const HttpRequest&) {
  app.metrics.state(app.book.waiting(), app.book.running(), app.dispatcher.state().ready,
                    app.connections ? app.connections() : 0, static_cast<int>(app.book.list().size()));
  HttpResponse response;
  response.type = "text/plain; version=0.0.4";
  response.body = app.metrics.text();
  return response;
}

HttpResponse get_models(App& app, const HttpRequest&) {
  return json_response(Json::object({{"object", "list"}, {"data", Json::array({model_json(app)})}}));
}

HttpResponse get_openapi(App&, const HttpRequest&) { return json_response(openapi_json()); }

HttpResponse get_page(App&, const HttpRequest& request) {
  const std::string name = request.matched.empty() ? "index.html" : request.matched[0];
  for (const WebFile& file : web_files()) {
    if (file.name != name) continue;
    HttpResponse response;
    const std::string ending = name.substr(name.find_last_of('.') + 1);
    response.type = ending == "html"  ? "text/html; charset=utf-8"
                    : ending == "js"  ? "text/javascript; charset=utf-8"
                    : ending == "css" ? "text/css; charset=utf-8"
                    : ending == "svg" ? "image/svg+xml"
                                      : "application/octet-stream";
    response.body.assign(reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size());
    response.with("Content-Security-Policy",
                  "default-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; style-src 'self'; "
                  "frame-ancestors 'none'; base-uri 'none'; form-action 'none'");
    response.with("Cache-Control", "no-cache").with("Referrer-Policy", "no-referrer");
    return response;
  }
  throw ApiError{404,
                 "not_found",
                 "there is nothing at " + request.path.substr(0, 100) + "; see /openapi.json",
                 "path",
                 request.path.substr(0, 100),
                 "the paths in /openapi.json",
                 0};
}

}  // namespace h3::server
