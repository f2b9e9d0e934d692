// What the endpoints share.
#pragma once

#include <atomic>
#include <mutex>

#include "apps/server/conditioner.h"
#include "apps/server/dispatcher.h"
#include "apps/server/fields.h"
#include "apps/server/forecast.h"
#include "apps/server/rewriter.h"
#include "apps/server/serve.h"

namespace h3::server {

struct App {
  App(const ServeOptions& serve_options, Log& server_log);

  const ServeOptions& options;
  Log& log;
  ModelFacts facts;
  Root media, outputs;
  Rewriter rewriter;
  Conditioner conditioner;
  Estimator estimator;
  Metrics metrics;
  JobBook book;
  Dispatcher dispatcher;
  Forecast forecast;
  std::atomic<int> streams{0};
  std::mutex decoding;  // held while one picture or reference is decoded: its frames may have 64 megapixels
  std::function<int()> connections;  // set when the server listens
};

// ---- views.cpp: jobs as clients see them
// brief: without the report and the resolved request, for lists.
Json video_json(const App& app, const Snapshot& snapshot, bool brief = false);
Json progress_json(const Snapshot& snapshot);
std::string clip_type(const std::string& format);  // "video/mp4"

// ---- intake.cpp: from a body to a job
inline constexpr size_t kMostFileBytes = size_t{32} << 20;   // of a picture or a sound
inline constexpr size_t kMostClipBytes = size_t{128} << 20;  // of a clip, and of what a clip's sound is taken from

// What can be asked of the model on the worker's device.
ModelFacts facts_of(const App& app);
struct Intake {
  Job job;
  Resolved resolved;
  std::vector<std::string> held;  // inputs to release when the job is in the book, or will never be
};
// Throws ApiError.
// text_only: for prompt embeddings, which need no transformer.
Intake take_in(App& app, const HttpRequest& request, bool text_only = false);
// Submits what was taken in; ApiError 503 when the queue is full.
JobBook::Accepted submit(App& app, const HttpRequest& request, Intake intake);

}  // namespace h3::server
