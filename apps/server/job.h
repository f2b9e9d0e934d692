// A job, from the moment a client is told its id until it is deleted.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"

namespace h3::server {

enum class Status { queued, in_progress, completed, failed, cancelled };
const char* name_of(Status status);
bool parse_status(const std::string& text, Status& status);
inline bool finished(Status status) { return status != Status::queued && status != Status::in_progress; }

// What the ledger keeps. Times are Unix milliseconds, 0 = not yet.
struct Job {
  std::string id;
  Status status = Status::queued;
  double position = 0;  // order in the queue
  int64_t created = 0, started = 0, completed = 0;
  int attempts = 0;                          // times it was given to the worker
  std::string cancel_reason;                 // set when somebody asked for it; "" = nobody did
  bool attached = false;                     // somebody waits on the connection; without them the clip has no use
  std::string idempotency_key, fingerprint;  // of the request, to tell a repeated key from a reused one
  Json asked = Json::object();               // canonical fields as given
  Json request;                              // for the engine, explicit in every field
  Json resolved;                             // values and where each came from
  std::string prompt;                        // as given; request has the rewritten one
  std::string format = "mp4", output, user;
  std::string turbo;  // name of the adapter; "" = none
  bool rewrite = false;
  bool text_only = false;                     // makes prompt embeddings for another server instead of a clip
  std::map<std::string, std::string> inputs;  // "first_frame", "reference_1" -> file in the input store
  Json references = Json::array();            // what each reference is and which tags name it
  int64_t reference_rows = 0;                 // of the packed sequence
  std::vector<std::string> warnings;
  Json report;  // null until it ran
  std::string error_code, error_message;
  int64_t bytes = 0;  // of the clip
  // Of the resolved request, for listings and estimates.
  int width = 0, height = 0, frames = 0, evaluations = 0;
  uint64_t seed = 0;

  Json to_json() const;  // everything except id, status, position and the key, which are columns
  void read_json(const Json& json);
};

// Where a running job stands.
struct Live {
  std::string stage;
  int64_t done = 0, total = 0;              // units of the stage
  int step = 0, steps = 0;                  // evaluations
  double progress = 0;                      // 0..1, of the whole job
  double eta_seconds = -1;                  // counted from reported; -1 = unknown
  int64_t reported = 0, stage_started = 0;  // Unix milliseconds
  std::string preview;                      // a PNG
  int preview_step = 0;
  uint64_t preview_version = 0;
};

double eta_now(const Live& live);  // seconds; -1 = unknown

std::string new_job_id();
int64_t now_ms();

}  // namespace h3::server
