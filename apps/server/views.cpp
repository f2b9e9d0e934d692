#include <cmath>

#include "apps/server/app.h"
#include "base/error.h"
#include "pipeline/report.h"

namespace h3::server {
namespace {

Json seconds_of(int64_t milliseconds) { return milliseconds == 0 ? Json() : Json(milliseconds / 1000); }
Json known(double seconds) { return seconds < 0 ? Json() : Json(std::round(seconds * 10) / 10); }

Json list_of(const std::vector<std::string>& items) {
  Json list = Json::array();
  for (const std::string& item : items) list.push(item);
  return list;
}

Json error_of(const Job& job) {
  if (job.status == Status::cancelled) {
    return Json::object({{"code", "cancelled"}, {"message", job.cancel_reason}});
  }
  if (job.status != Status::failed) return {};
  return Json::object({{"code", job.error_code}, {"message", job.error_message}});
}

// What the report says in the words of other servers.
void add_measurements(const Job& job, Json& json) {
  const Json* const seconds = job.report.find("seconds");
  json.set("inference_time_s", seconds != nullptr ? *seconds : Json());
  Json durations = Json::object();
  if (const Json* const stages = job.report.find("stages")) {
    for (const Json& stage : stages->items()) durations.set(stage.at("stage").as_string(), stage.at("seconds"));
  }
  json.set("stage_durations", std::move(durations));
  double peak = -1;
  for (const char* key : {"peak_device_bytes", "peak_ram_bytes"}) {
    const Json* const bytes = job.report.find(key);
    if (peak <= 0 && bytes != nullptr) peak = std::round(bytes->as_double() / (1 << 20));
  }
  json.set("peak_memory_mb", peak < 0 ? Json() : Json(peak));
  const Json* const evaluations = job.report.find("evaluations");
  json.set("evaluations", evaluations != nullptr ? *evaluations : Json());
}

void add_warnings(const Job& job, Json& json) {
  std::vector<std::string> all = job.warnings;
  if (const Json* const late = job.report.find("warnings")) {
    for (const Json& warning : late->items()) {
      const std::string& text = warning.as_string();
      if (std::find(all.begin(), all.end(), text) == all.end()) all.push_back(text);
    }
  }
  json.set("warnings", list_of(all));
}

}  // namespace

std::string clip_type(const std::string& format) {
  if (format == "mp4") return "video/mp4";
  if (format == "webm") return "video/webm";
  if (format == "avi") return "video/x-msvideo";
  return "application/octet-stream";
}

Json progress_json(const Snapshot& snapshot) {
  const Job& job = *snapshot.job;
  const Live& live = snapshot.live;
  const double share = job.status == Status::completed ? 1 : live.progress;
  Json json = Json::object({{"status", name_of(job.status)}, {"progress", static_cast<int64_t>(share * 100)}});
  json.set("stage", live.stage.empty() ? Json() : Json(live.stage));
  json.set("step", job.status == Status::completed ? job.evaluations : live.step).set("steps", job.evaluations);
  json.set("stage_done", live.done).set("stage_total", live.total);
  json.set("eta_seconds", known(eta_now(live)));
  json.set("queue_position", snapshot.queue_position > 0 ? Json(snapshot.queue_position) : Json());
  json.set("wait_seconds", known(snapshot.wait_seconds));
  return json;
}

Json video_json(const App& app, const Snapshot& snapshot, bool brief) {
  const Job& job = *snapshot.job;
  Json json = Json::object({{"id", job.id}, {"object", "video"}, {"model", app.facts.name}});
  const Json progress = progress_json(snapshot);
  for (const auto& [key, value] : progress.members()) json.set(key, value);
  json.set("created_at", seconds_of(job.created)).set("started_at", seconds_of(job.started));
  json.set("completed_at", seconds_of(job.completed));
  const int64_t kept = static_cast<int64_t>(app.options.book.keep_hours * 3'600'000);
  json.set("expires_at", job.completed == 0 ? Json() : seconds_of(job.completed + kept));
  json.set("size", strf("%dx%d", job.width, job.height)).set("width", job.width).set("height", job.height);
  json.set("num_frames", job.frames).set("fps", 24).set("seconds", strf("%.4g", job.frames / 24.0));
  json.set("seed", seed_json(job.seed)).set("num_inference_steps", job.evaluations);
  json.set("prompt", job.prompt);
  const Json* const sent = job.request.find("prompt");
  const bool rewritten = sent != nullptr && sent->is_string() && sent->as_string() != job.prompt;
  json.set("rewritten_prompt", rewritten ? *sent : Json());
  add_warnings(job, json);
  json.set("error", error_of(job)).set("attempts", job.attempts);
  const std::string base = "/v1/videos/" + job.id;
  const bool done = job.status == Status::completed;
  json.set("url", done ? Json(base + "/content") : Json());
  json.set("media_type", clip_type(job.format)).set("file_name", job.id + "." + job.format);
  json.set("bytes", done ? Json(job.bytes) : Json()).set("output", job.output.empty() ? Json() : Json(job.output));
  json.set("file_path", job.output.empty() || !done
                            ? Json()
                            : Json(job.output[0] == '/' ? job.output : app.outputs.path() + "/" + job.output));
  const Json* const quality = job.asked.find("quality");
  json.set("quality", quality != nullptr ? *quality : Json("standard"));
  json.set("turbo", job.turbo.empty() ? Json() : Json(job.turbo));
  json.set("num_outputs", 1).set("remixed_from_video_id", Json());
  add_measurements(job, json);
  Json inputs = Json::object();
  for (const auto& [field, file] : job.inputs) inputs.set(field, base + "/inputs/" + field);
  json.set("inputs", std::move(inputs)).set("references", job.references);
  json.set("preview", snapshot.live.preview.empty() ? Json() : Json(base + "/preview"));
  if (!job.user.empty()) json.set("user", job.user);
  json.set("request", job.asked);
  if (!brief) json.set("resolved", job.resolved);
  return json;
}

}  // namespace h3::server
