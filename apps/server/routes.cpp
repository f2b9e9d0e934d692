#include "apps/server/routes.h"

#include <vector>

namespace h3::server {
namespace {

// clang-format off
constexpr Route kRoutes[] = {
    // method, path, group, handler, open, body, query, answer, summary, errors
    {"POST", "/v1/videos", "Clips", create_video, false, "clip", "",
     "the job, status queued", "Queue a clip. The job is on disk before this answers.",
     "400, 401, 403, 409, 413, 415, 503"},
    {"POST", "/v1/videos/sync", "Clips", create_video_sync, false, "clip", "",
     "the clip itself, with x-inference-time-s, x-peak-memory-mb, X-Stage-Durations and X-Video-Id",
     "Make a clip and wait for it. Closing the connection cancels it.", "400, 401, 403, 413, 415, 500, 503"},
    {"POST", "/v1/videos/estimate", "Clips", estimate_video, false, "clip", "",
     "the resolved request, seconds of work and of waiting, memory at its peak and whether it fits, tokens of the "
     "prompt",
     "What a request would do, how long it would take and what it would hold; queues nothing.",
     "400, 401, 403, 413, 415"},
    {"POST", "/v1/lint", "Clips", lint_prompt, false,
     "prompt; of the clip it is for: seconds or num_frames, size, keyframes (how many), and pictures, videos and "
     "audios (how many of each are given as references)", "",
     "tokens (with keyframes), prompt_tokens, token_limit, spoken_words, spoken_characters, speech_seconds (2.5 words "
     "or 4.5 characters a second), clip_seconds, and hints: {level: error, warning or advice, code, message, found}",
     "What a prompt will mean to the model, while it is written.", "400, 401, 413, 415"},
    {"POST", "/v1/videos/embeddings", "Clips", create_embeddings, false, "clip", "",
     "safetensors with prompt_embeds and text_token_tags, as `--dump text=FILE` writes them",
     "Encode a prompt with its keyframes or references for another server (--conditioner).",
     "400, 401, 403, 413, 415, 500, 503"},
    {"POST", "/generate", "Clips", generate, false, "clip", "",
     "{status, output, seed, width, height, frames, seconds, id}",
     "Make a clip, write it to `output` below --output-root, and wait. Closing the connection cancels it.",
     "400, 401, 403, 413, 415, 500, 503"},

    {"GET", "/v1/videos", "Jobs", list_videos, false, "",
     "limit: 1..1000, 100 if left out; after: id of the last one seen; order: desc or asc; status: one of the five",
     "{object: \"list\", data, first_id, last_id, has_more}", "Jobs, newest first.", "400, 401"},
    {"GET", "/v1/videos/{id}", "Jobs", get_video, false, "", "", "the job", "One job.", "401, 404"},
    {"GET", "/v1/videos/{id}/content", "Jobs", get_content, false, "",
     "variant: 0 or video; download: 1 for a file name",
     "the clip; Range requests are answered", "The finished clip.", "400, 401, 404, 409, 416"},
    {"GET", "/v1/videos/{id}/events", "Jobs", get_events, false, "", "",
     "server-sent events: status, progress, preview, and one of completed, failed, cancelled as the last",
     "Follow a job.", "401, 404, 503"},
    {"GET", "/v1/videos/{id}/preview", "Jobs", get_preview, false, "", "", "a PNG",
     "The latest picture of a running job.", "401, 404"},
    {"GET", "/v1/videos/{id}/report", "Jobs", get_report, false, "", "",
     "request as resolved, models, times, evaluations, memory, verdicts", "What was done.", "401, 404, 409"},
    {"GET", "/v1/videos/{id}/inputs/{name}", "Jobs", get_input, false, "", "", "the file as it was sent",
     "A keyframe or reference of a job, by its name in `inputs`.", "401, 404"},
    {"POST", "/v1/videos/{id}/cancel", "Jobs", cancel_video, false, "", "", "the job",
     "Cancel a job. A running one stops within two blocks of the model.", "401, 404, 409"},
    {"POST", "/v1/videos/{id}/move", "Jobs", move_video, false,
     "position: place in the queue from 1, or first or last", "", "the job",
     "Give a waiting job another place.", "400, 401, 404, 409"},
    {"DELETE", "/v1/videos/{id}", "Jobs", delete_video, false, "", "",
     "{id, object: \"video.deleted\", deleted: true}",
     "Delete a job and its files; one that has not finished is cancelled first.", "401, 404"},

    {"GET", "/ready", "Server", get_ready, true, "", "",
     "{ready, model, device, available_turbos, current_turbo, ...}",
     "Whether the worker has a device and takes jobs; 503 while it does not.", "503"},
    {"GET", "/health", "Server", get_health, true, "", "", "{status: \"ok\", version}",
     "Whether the server answers.", ""},
    {"GET", "/metrics", "Server", get_metrics, false, "", "", "Prometheus text", "Counters and histograms.", "401"},
    {"GET", "/v1/models", "Server", get_models, false, "", "",
     "{object: \"list\", data} with defaults, limits, canvases and lengths of the model",
     "The model and what can be asked of it.", "401"},
    {"GET", "/openapi.json", "Server", get_openapi, true, "", "", "OpenAPI 3.1", "This table for programs.", ""},
    {"GET", "/", "Server", get_page, true, "", "", "HTML", "The page.", ""},
    {"GET", "/{name}", "Server", get_page, true, "", "", "a file of the page", "What the page loads.", "404"},
};
// clang-format on

std::vector<std::string> segments(std::string_view path) {
  std::vector<std::string> parts;
  while (!path.empty()) {
    path.remove_prefix(1);
    const size_t slash = std::min(path.size(), path.find('/'));
    parts.emplace_back(path.substr(0, slash));
    path.remove_prefix(slash);
  }
  return parts;
}

bool match(const char* pattern, const std::vector<std::string>& path, std::vector<std::string>& matched) {
  const std::vector<std::string> want = segments(pattern);
  if (want.size() != path.size()) return false;
  matched.clear();
  for (size_t i = 0; i < want.size(); ++i) {
    if (!want[i].empty() && want[i][0] == '{') {
      if (path[i].empty()) return false;
      matched.push_back(path[i]);
    } else if (want[i] != path[i]) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::span<const Route> routes() { return kRoutes; }

const Route* find_route(HttpRequest& request, std::string& allowed) {
  allowed.clear();
  if (request.path.empty() || request.path[0] != '/') return nullptr;
  const std::vector<std::string> path = segments(request.path);
  bool fixed = false;  // a path without {names} matched, so {names} are not meant
  for (const Route& route : kRoutes) {
    std::vector<std::string> matched;
    if (!match(route.path, path, matched) || (fixed && !matched.empty())) continue;
    fixed = fixed || matched.empty();
    const bool head = request.method == "HEAD" && std::string_view(route.method) == "GET";
    if (head || request.method == route.method) {
      request.matched = std::move(matched);
      request.route = route.path;
      return &route;
    }
    if (allowed.find(route.method) == std::string::npos)
      allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
  }
  return nullptr;
}

}  // namespace h3::server
