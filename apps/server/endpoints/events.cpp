// Following a job over server-sent events.
#include <chrono>

#include "apps/server/body.h"
#include "apps/server/routes.h"
#include "base/error.h"

namespace h3::server {
namespace {

// One listener. It is always sent the newest state: a slow reader misses steps in between, never the end.
class Follower {
 public:
  Follower(App& app, std::string id) : app_(app), id_(std::move(id)) {}

  // One round: waits for news and writes them. False when the stream is over.
  bool round(const StreamWriter& writer) {
    const std::optional<Snapshot> now = app_.book.find(id_);
    if (!now) {
      send(writer, "deleted", Json::object({{"id", id_}}));
      return false;
    }
    if (!first_ && now->version == version_) return wait(writer);
    version_ = now->version;
    const Job& job = *now->job;
    if (first_ || job.status != status_ || job.attempts != attempts_ || job.warnings.size() != warnings_) {
      status_ = job.status;
      attempts_ = job.attempts;
      warnings_ = job.warnings.size();
      const bool over = finished(job.status);
      const std::string head = first_ ? "retry: 2000\n" : "";
      first_ = false;
      return send(writer, over ? name_of(job.status) : "status", video_json(app_, *now), head) && !over;
    }
    if (!send(writer, "progress", progress_json(*now))) return false;
    if (now->live.preview_version == preview_) return true;
    preview_ = now->live.preview_version;
    return send(writer, "preview",
                Json::object({{"step", now->live.preview_step},
                              {"steps", job.evaluations},
                              {"type", "image/png"},
                              {"data", encode_base64(now->live.preview)}}));
  }

 private:
  bool wait(const StreamWriter& writer) {
    constexpr double kSlice = 0.5, kSilence = 15;
    app_.book.wait(id_, version_, kSlice);
    if (!writer.open()) return false;
    silent_ += kSlice;
    if (silent_ < kSilence) return true;
    silent_ = 0;
    return writer.write(": still here\n\n");
  }

  bool send(const StreamWriter& writer, const char* event, const Json& data, const std::string& head = "") {
    silent_ = 0;
    return writer.write(head + strf("id: %llu\nevent: %s\ndata: ", static_cast<unsigned long long>(version_), event) +
                        data.dump() + "\n\n");
  }

  App& app_;
  const std::string id_;
  bool first_ = true;
  uint64_t version_ = 0, preview_ = 0;
  Status status_ = Status::queued;
  int attempts_ = 0;
  size_t warnings_ = 0;
  double silent_ = 0;
};

}  // namespace

HttpResponse get_events(App& app, const HttpRequest& request) {
  const std::string& id = request.matched[0];
  if (!app.book.find(id)) {
    throw ApiError{404,  "not_found",      "there is no job \"" + id.substr(0, 60) + "\"",
                   "id", id.substr(0, 60), "an id from GET /v1/videos",
                   0};
  }
  if (++app.streams > app.options.max_streams) {
    --app.streams;
    throw ApiError{
        503, "too_many_streams", "too many clients follow jobs, poll GET /v1/videos/" + id + " instead", "", "", "", 5};
  }
  app.metrics.streams(1);
  HttpResponse response;
  response.type = "text/event-stream";
  response.with("Cache-Control", "no-store").with("X-Accel-Buffering", "no");
  response.stream = [follower = std::make_shared<Follower>(app, id)](const StreamWriter& writer) {
    return follower->round(writer);
  };
  response.on_end = [&app] {
    --app.streams;
    app.metrics.streams(-1);
  };
  return response;
}

}  // namespace h3::server
