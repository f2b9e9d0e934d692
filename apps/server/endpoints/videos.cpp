// Making clips.
#include <algorithm>
#include <cmath>

#include "apps/server/routes.h"
#include "base/error.h"
#include "pipeline/plan.h"
#include "pipeline/report.h"

namespace h3::server {
namespace {

// Waits for a job on the client's connection. False when the client has gone; the job is cancelled then.
bool wait_for_end(App& app, const HttpRequest& request, Snapshot& last) {
  const std::string id = last.job->id;
  for (;;) {
    const std::optional<Snapshot> now = app.book.find(id);
    if (!now) throw ApiError{500, "deleted", "the job was deleted while it was waited for", "", "", "", 0};
    last = *now;
    if (finished(last.job->status)) return true;
    if (request.disconnected()) {
      try {
        app.book.cancel(id, "the client closed the connection");
      } catch (const ApiError&) {  // it has just finished
      }
      return false;
    }
    app.book.wait(id, last.version, 0.25);
  }
}

// What a failed job means to somebody who waited for it.
HttpResponse failure(const Job& job) {
  HttpResponse response;
  if (job.status == Status::cancelled) {
    response = error_response({409, "cancelled", "the job was cancelled: " + job.cancel_reason, "", "", "", 0});
  } else {
    response = error_response({500, job.error_code, job.error_message, "", "", "", 0});
  }
  return response.with("X-Video-Id", job.id);
}

void add_times(const Job& job, HttpResponse& response) {
  const Json* const seconds = job.report.find("seconds");
  if (seconds != nullptr) response.with("x-inference-time-s", strf("%.3f", seconds->as_double()));
  const Json* const device = job.report.find("peak_device_bytes");
  const Json* const ram = job.report.find("peak_ram_bytes");
  const double bytes = device != nullptr && device->as_double() > 0 ? device->as_double()
                       : ram != nullptr                             ? ram->as_double()
                                                                    : 0;
  response.with("x-peak-memory-mb", strf("%.1f", bytes / (1 << 20)));
  Json durations = Json::object();
  if (const Json* const stages = job.report.find("stages")) {
    for (const Json& stage : stages->items()) durations.set(stage.at("stage").as_string(), stage.at("seconds"));
  }
  response.with("X-Stage-Durations", durations.dump()).with("X-Video-Id", job.id);
  response.with("X-Seed", std::to_string(job.seed));
}

// Submits a job that lives as long as the connection, and waits for it.
bool run_attached(App& app, const HttpRequest& request, Snapshot& last, bool text_only = false) {
  Intake intake = take_in(app, request, text_only);
  intake.job.attached = true;
  last = submit(app, request, std::move(intake)).snapshot;
  return wait_for_end(app, request, last);
}

HttpResponse client_gone() {
  HttpResponse response = error_response({409, "cancelled", "the client closed the connection", "", "", "", 0});
  response.close = true;
  return response;
}

}  // namespace

HttpResponse create_video(App& app, const HttpRequest& request) {
  const JobBook::Accepted accepted = submit(app, request, take_in(app, request));
  HttpResponse response = json_response(video_json(app, accepted.snapshot));
  response.with("Location", "/v1/videos/" + accepted.snapshot.job->id);
  if (accepted.replayed) response.with("Idempotency-Replayed", "true");
  return response;
}

HttpResponse create_video_sync(App& app, const HttpRequest& request) {
  Snapshot last;
  if (!run_attached(app, request, last)) return client_gone();
  const Job& job = *last.job;
  if (job.status != Status::completed) return failure(job);
  HttpResponse response = file_response({}, app.book.clip(job), clip_type(job.format));
  add_times(job, response);
  return response;
}

HttpResponse generate(App& app, const HttpRequest& request) {
  Snapshot last;
  if (!run_attached(app, request, last)) return client_gone();
  const Job& job = *last.job;
  if (job.status != Status::completed) return failure(job);
  const Json* const seconds = job.report.find("seconds");
  Json json = Json::object({{"status", "completed"}, {"id", job.id}, {"seed", seed_json(job.seed)}});
  json.set("output", job.output.empty() ? Json() : Json(job.output)).set("url", "/v1/videos/" + job.id + "/content");
  json.set("width", job.width).set("height", job.height).set("frames", job.frames);
  json.set("turbo", job.turbo.empty() ? "none" : job.turbo);
  json.set("steps", job.evaluations).set("seconds", seconds != nullptr ? *seconds : Json());
  json.set("warnings", video_json(app, last).at("warnings"));
  return json_response(json);
}

HttpResponse create_embeddings(App& app, const HttpRequest& request) {
  Snapshot last;
  if (!run_attached(app, request, last, true)) return client_gone();
  const Job& job = *last.job;
  HttpResponse response = job.status == Status::completed
                              ? file_response({}, app.book.clip(job), "application/octet-stream")
                              : failure(job);
  // Nobody asks for it again.
  response.on_end = [&app, id = job.id] {
    try {
      app.book.erase(id);
    } catch (const ApiError&) {  // somebody was faster
    }
  };
  return response;
}

namespace {

Json rounded(double seconds) { return seconds < 0 ? Json() : Json(std::round(seconds * 1e4) / 1e4); }

double waiting_seconds(const App& app) {
  double wait = 0;
  for (const Snapshot& other : app.book.list()) {
    if (finished(other.job->status)) continue;
    const double eta =
        other.live.eta_seconds >= 0 ? eta_now(other.live) : app.estimator.estimate(work_of(*other.job)).seconds;
    wait = wait < 0 || eta < 0 ? -1 : wait + eta;
  }
  return wait;
}

// Seconds of a plan by the names of Estimate::stages, without what a hot worker has loaded already; empty when unknown.
std::map<std::string, double> planned_stages(const RunPlan& plan) {
  std::map<std::string, double> stages;
  for (const PlanStage& stage : plan.stages) {
    if (stage.stage.rfind("load ", 0) == 0) continue;
    if (stage.seconds < 0) return {};
    stages[phase_of(stage.stage)] += stage.seconds;
  }
  return stages;
}

void add_plan(const RunPlan& plan, const Resolved& resolved, Json& json, Json& warnings) {
  const Json whole = plan.to_json();
  const MemoryPlan& memory = plan.vram.peak > 0 ? plan.vram : plan.ram;
  json.set("peak_memory_mb", std::round(static_cast<double>(memory.peak) / (1 << 20)));
  json.set("fits", plan.ram.fits() && plan.vram.fits());
  Json parts = Json::object({{"ram", whole.at("ram")}});
  if (plan.vram.peak > 0) parts.set("vram", whole.at("vram"));
  json.set("memory", std::move(parts)).set("disk_bytes", plan.disk);
  try {
    check_plan(plan, resolved);
  } catch (const Error& error) {
    warnings.push(std::string("memory: ") + error.what());
  }
}

}  // namespace

HttpResponse estimate_video(App& app, const HttpRequest& request) {
  const Intake intake = take_in(app, request);
  for (const std::string& file : intake.held) app.book.release_input(file);
  const Job& job = intake.job;
  Json warnings = Json::array();
  for (const std::string& warning : job.warnings) warnings.push(warning);
  Json json = Json::object({{"object", "video.estimate"}, {"size", strf("%dx%d", job.width, job.height)}});
  json.set("width", job.width).set("height", job.height).set("num_frames", job.frames);
  json.set("seconds", strf("%.4g", job.frames / 24.0)).set("num_inference_steps", job.evaluations);
  Estimate estimate = app.estimator.estimate(work_of(job));
  const char* basis = estimate.measured ? "clips of this size and length" : "clips of other sizes";
  try {
    if (const std::optional<PlanMachine> machine = app.dispatcher.machine()) {
      Resolved written = intake.resolved;
      written.request.output = app.options.book.data_dir + "/clip." + job.format;
      const RunPlan plan = app.forecast.plan(written, *machine);
      add_plan(plan, written, json, warnings);
      if (estimate.seconds < 0) {
        estimate.stages = planned_stages(plan);
        basis = estimate.stages.empty() ? "" : "the speed of this machine";
        for (const auto& [name, seconds] : estimate.stages)
          estimate.seconds = std::max(0.0, estimate.seconds) + seconds;
      }
    }
  } catch (const Error& error) {
    app.log.write(LogLevel::info, "no plan: %s", error.what());
  }
  Json stages = Json::object();
  for (const auto& [name, seconds] : estimate.stages) stages.set(name, rounded(seconds));
  json.set("work_seconds", rounded(estimate.seconds)).set("stages", std::move(stages));
  json.set("basis", estimate.seconds < 0 ? "nothing was made here yet" : basis);
  json.set("wait_seconds", rounded(waiting_seconds(app)));
  json.set("jobs_ahead", app.book.waiting() + (app.book.running() ? 1 : 0));
  json.set("prompt_tokens", intake.resolved.prompt_tokens < 0 ? Json() : Json(intake.resolved.prompt_tokens));
  json.set("warnings", std::move(warnings)).set("resolved", job.resolved);
  json.set("references", job.references);
  return json_response(json);
}

}  // namespace h3::server
