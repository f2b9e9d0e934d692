// Looking at jobs and changing their course.
#include <algorithm>
#include <chrono>

#include "apps/server/body.h"
#include "apps/server/media_types.h"
#include "apps/server/routes.h"
#include "base/error.h"
#include "base/file_map.h"

namespace h3::server {
namespace {

Snapshot wanted(const App& app, const HttpRequest& request) {
  std::optional<Snapshot> found = app.book.find(request.matched[0]);
  if (found) return *std::move(found);
  throw ApiError{
      404,
      "not_found",
      "there is no job \"" + request.matched[0].substr(0, 60) + "\"; it may have been deleted or have expired",
      "id",
      request.matched[0].substr(0, 60),
      "an id from GET /v1/videos",
      0};
}

ApiError not_ready(const Job& job) {
  return {409,  "not_completed", "job " + job.id + " is " + name_of(job.status) + ", so there is no clip yet",
          "id", job.id,          "a completed job",
          0};
}

std::string parameter(const HttpRequest& request, const char* name) {
  const auto found = request.query.find(name);
  return found == request.query.end() ? std::string() : found->second;
}

ApiError bad_parameter(const char* name, const std::string& value, const char* allowed) {
  return {400,
          "invalid_value",
          std::string(name) + ": \"" + value.substr(0, 60) + "\" is not possible, give " + allowed,
          name,
          value.substr(0, 60),
          allowed,
          0};
}

int whole_parameter(const HttpRequest& request, const char* name, int fallback, int least, int most,
                    const char* allowed) {
  const std::string text = parameter(request, name);
  if (text.empty()) return fallback;
  const bool digits = text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos;
  const int value = digits ? std::stoi(text) : -1;
  if (value < least || value > most) throw bad_parameter(name, text, allowed);
  return value;
}

}  // namespace

HttpResponse list_videos(App& app, const HttpRequest& request) {
  const int limit = whole_parameter(request, "limit", 100, 1, 1000, "1 to 1000");
  const std::string after = parameter(request, "after"), order = parameter(request, "order");
  const std::string status = parameter(request, "status");
  Status wanted_status{};
  if (!status.empty() && !parse_status(status, wanted_status)) {
    throw bad_parameter("status", status, "queued, in_progress, completed, failed or cancelled");
  }
  if (!order.empty() && order != "asc" && order != "desc") throw bad_parameter("order", order, "asc or desc");
  std::vector<Snapshot> all = app.book.list();
  std::erase_if(all, [](const Snapshot& snapshot) { return snapshot.job->text_only; });  // nobody's clip
  if (order == "asc") std::reverse(all.begin(), all.end());
  if (!status.empty()) {
    std::erase_if(all, [&](const Snapshot& snapshot) { return snapshot.job->status != wanted_status; });
  }
  size_t first = 0;
  if (!after.empty()) {
    while (first < all.size() && all[first].job->id != after) ++first;
    if (first == all.size()) throw bad_parameter("after", after, "an id of this list");
    ++first;
  }
  Json data = Json::array();
  size_t last = first;
  for (; last < all.size() && last - first < static_cast<size_t>(limit); ++last) {
    data.push(video_json(app, all[last], true));
  }
  Json json = Json::object({{"object", "list"}, {"data", std::move(data)}});
  json.set("first_id", last > first ? Json(all[first].job->id) : Json());
  json.set("last_id", last > first ? Json(all[last - 1].job->id) : Json());
  json.set("has_more", last < all.size());
  return json_response(json);
}

HttpResponse get_video(App& app, const HttpRequest& request) {
  return json_response(video_json(app, wanted(app, request)));
}

HttpResponse get_content(App& app, const HttpRequest& request) {
  const Snapshot snapshot = wanted(app, request);
  const Job& job = *snapshot.job;
  const std::string variant = parameter(request, "variant");
  if (!variant.empty() && variant != "0" && variant != "video") throw bad_parameter("variant", variant, "0 or video");
  if (job.status != Status::completed) throw not_ready(job);
  HttpResponse response = file_response(request, app.book.clip(job), clip_type(job.format));
  const char* const how = parameter(request, "download") == "1" ? "attachment" : "inline";
  response.with("Content-Disposition", strf("%s; filename=\"%s.%s\"", how, job.id.c_str(), job.format.c_str()));
  // A finished clip never changes under its id.
  response.with("Cache-Control", "private, max-age=86400, immutable");
  return response;
}

HttpResponse get_preview(App& app, const HttpRequest& request) {
  const Snapshot snapshot = wanted(app, request);
  if (snapshot.live.preview.empty()) {
    throw ApiError{
        404,  "no_preview",     "job " + snapshot.job->id + " has no preview now; there is one while it denoises",
        "id", snapshot.job->id, "a running job",
        0};
  }
  HttpResponse response;
  response.type = "image/png";
  response.body = snapshot.live.preview;
  response.with("X-Step", std::to_string(snapshot.live.preview_step)).with("Cache-Control", "no-store");
  return response;
}

HttpResponse get_report(App& app, const HttpRequest& request) {
  const Snapshot snapshot = wanted(app, request);
  if (snapshot.job->report.is_null()) throw not_ready(*snapshot.job);
  return json_response(snapshot.job->report);
}

HttpResponse get_input(App& app, const HttpRequest& request) {
  const Snapshot snapshot = wanted(app, request);
  const auto found = snapshot.job->inputs.find(request.matched[1]);
  if (found == snapshot.job->inputs.end()) {
    throw ApiError{404,
                   "not_found",
                   "job " + snapshot.job->id + " has no input \"" + request.matched[1].substr(0, 40) + "\"",
                   "name",
                   request.matched[1].substr(0, 40),
                   "a name in inputs of the job",
                   0};
  }
  const std::string& file = found->second;
  const std::string type = media_type_of(file.substr(file.find('.') + 1));
  HttpResponse response = file_response(request, app.book.input(file), type);
  response.with("Cache-Control", "private, max-age=86400, immutable");
  return response;
}

HttpResponse cancel_video(App& app, const HttpRequest& request) {
  const std::string id = wanted(app, request).job->id;
  app.book.cancel(id, "a client cancelled it");
  const std::optional<Snapshot> now = app.book.find(id);
  if (now && now->job->status == Status::cancelled && now->job->attempts == 0) app.metrics.job_finished("cancelled");
  return json_response(video_json(app, wanted(app, request)));
}

HttpResponse move_video(App& app, const HttpRequest& request) {
  const std::string id = wanted(app, request).job->id;
  const char* const allowed = "a place from 1, or first or last";
  int place = 0;
  for (const Given& given : parse_body(request.header("content-type"), request.body)) {
    if (given.name != "position") refuse_unknown(given, "unknown field", "position");
    const std::string word = given.value.is_string() ? given.value.as_string() : "";
    place = word == "first" ? 1 : word == "last" ? 1 << 20 : static_cast<int>(whole_of(given, allowed));
  }
  if (place < 1) throw bad_parameter("position", std::to_string(place), allowed);
  app.book.move(id, place);
  return json_response(video_json(app, wanted(app, request)));
}

HttpResponse delete_video(App& app, const HttpRequest& request) {
  const std::string id = wanted(app, request).job->id;
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    const std::optional<Snapshot> now = app.book.find(id);
    if (!now) break;
    if (finished(now->job->status)) {
      app.book.erase(id);
      break;
    }
    if (now->job->cancel_reason.empty()) app.book.cancel(id, "a client deleted it");
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(10)) {
      // It is cancelled, and what is left of it goes when the worker has let go.
      return json_response(
          Json::object({{"id", id}, {"object", "video.deleted"}, {"deleted", false}, {"status", "cancelling"}}), 202);
    }
    app.book.wait(id, now->version, 0.25);
  }
  return json_response(Json::object({{"id", id}, {"object", "video.deleted"}, {"deleted", true}}));
}

}  // namespace h3::server
