#include "apps/server/job.h"

#include <sys/random.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "pipeline/request.h"

namespace h3::server {
namespace {

constexpr const char* kStatus[] = {"queued", "in_progress", "completed", "failed", "cancelled"};

std::string text_at(const Json& json, const char* key) {
  const Json* const value = json.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

int64_t int_at(const Json& json, const char* key) {
  const Json* const value = json.find(key);
  return value != nullptr && value->is_number() ? value->as_int() : 0;
}

bool bool_at(const Json& json, const char* key) {
  const Json* const value = json.find(key);
  return value != nullptr && value->is_bool() && value->as_bool();
}

}  // namespace

const char* name_of(Status status) { return kStatus[static_cast<int>(status)]; }

bool parse_status(const std::string& text, Status& status) {
  for (int i = 0; i < 5; ++i) {
    if (text == kStatus[i]) {
      status = static_cast<Status>(i);
      return true;
    }
  }
  return false;
}

Json Job::to_json() const {
  Json json = Json::object();
  json.set("created", created).set("started", started).set("completed", completed).set("attempts", attempts);
  json.set("cancel_reason", cancel_reason).set("attached", attached).set("fingerprint", fingerprint);
  json.set("asked", asked).set("request", request).set("resolved", resolved).set("prompt", prompt);
  json.set("format", format).set("output", output).set("user", user);
  json.set("turbo", turbo).set("rewrite", rewrite).set("text_only", text_only);
  Json files = Json::object();
  for (const auto& [field, file] : inputs) files.set(field, file);
  json.set("inputs", std::move(files)).set("references", references);
  json.set("reference_rows", reference_rows);
  Json list = Json::array();
  for (const std::string& warning : warnings) list.push(warning);
  json.set("warnings", std::move(list)).set("report", report);
  json.set("error_code", error_code).set("error_message", error_message).set("bytes", bytes);
  json.set("width", width).set("height", height).set("frames", frames).set("evaluations", evaluations);
  json.set("seed", std::to_string(seed));
  return json;
}

void Job::read_json(const Json& json) {
  created = int_at(json, "created");
  started = int_at(json, "started");
  completed = int_at(json, "completed");
  attempts = static_cast<int>(int_at(json, "attempts"));
  cancel_reason = text_at(json, "cancel_reason");
  attached = bool_at(json, "attached");
  fingerprint = text_at(json, "fingerprint");
  const auto copy = [&](const char* key, Json& to) {
    if (const Json* const value = json.find(key)) to = *value;
  };
  copy("asked", asked);
  copy("request", request);
  copy("resolved", resolved);
  copy("report", report);
  copy("references", references);
  reference_rows = int_at(json, "reference_rows");
  prompt = text_at(json, "prompt");
  format = text_at(json, "format");
  output = text_at(json, "output");
  user = text_at(json, "user");
  turbo = text_at(json, "turbo");
  rewrite = bool_at(json, "rewrite");
  text_only = bool_at(json, "text_only");
  if (const Json* const files = json.find("inputs")) {
    for (const auto& [field, file] : files->members()) inputs[field] = file.as_string();
  }
  if (const Json* const list = json.find("warnings")) {
    for (const Json& warning : list->items()) warnings.push_back(warning.as_string());
  }
  error_code = text_at(json, "error_code");
  error_message = text_at(json, "error_message");
  bytes = int_at(json, "bytes");
  width = static_cast<int>(int_at(json, "width"));
  height = static_cast<int>(int_at(json, "height"));
  frames = static_cast<int>(int_at(json, "frames"));
  evaluations = static_cast<int>(int_at(json, "evaluations"));
  seed = parse_seed(Json(text_at(json, "seed"))).value;
}

double eta_now(const Live& live) {
  if (live.eta_seconds < 0) return -1;
  return std::max(0.0, live.eta_seconds - static_cast<double>(now_ms() - live.reported) / 1000);
}

std::string new_job_id() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) {
    fail(Code::io, "the system gives no random numbers");
  }
  std::string id = "video_";
  for (const unsigned char byte : bytes) id += strf("%02x", byte);
  return id;
}

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace h3::server
