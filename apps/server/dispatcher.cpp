#include "apps/server/dispatcher.h"

#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "apps/server/body.h"
#include "apps/server/conditioner.h"
#include "apps/server/http.h"
#include "apps/server/rewriter.h"
#include "base/error.h"
#include "base/file_map.h"
#include "pipeline/stage_sink.h"

namespace h3::server {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

Dispatcher::Dispatcher(const DispatcherOptions& options, JobBook& book, const DispatcherParts& parts, Log& log)
    : options_(options),
      book_(book),
      outputs_(parts.outputs),
      rewriter_(parts.rewriter),
      conditioner_(parts.conditioner),
      estimator_(parts.estimator),
      metrics_(parts.metrics),
      log_(log),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  state_.problem = "the worker is starting";
  book_.on_stop_wanted = [this] { ::eventfd_write(wake_fd_, 1); };
}

Dispatcher::~Dispatcher() {
  stop();
  ::close(wake_fd_);
}

void Dispatcher::start() {
  thread_ = std::thread([this] { loop(); });
}

void Dispatcher::stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  ::eventfd_write(wake_fd_, 1);
  book_.wake_all();
  thread_.join();
}

WorkerState Dispatcher::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

std::optional<PlanMachine> Dispatcher::machine() const {
  const std::lock_guard lock(mutex_);
  std::optional<PlanMachine> machine = machine_;
  if (machine && machine->ram == 0) machine->ram = ram_for(anonymous_bytes(static_cast<int>(state_.pid)));
  return machine;
}

void Dispatcher::drain_wake() {
  eventfd_t count = 0;
  ::eventfd_read(wake_fd_, &count);
}

void Dispatcher::loop() {
  Clock::time_point retained = Clock::now();
  while (!stopping_) {
    try {
      if (!ensure_worker()) continue;
      if (const std::shared_ptr<const Job> job = book_.take(0.5)) {
        run(job);
        book_.retain();
      } else {
        listen();
      }
      if (seconds_since(retained) > 600) {
        book_.retain();
        retained = Clock::now();
      }
    } catch (const Error& error) {
      // A full disk, above all: jobs wait until there is room again.
      log_.write(LogLevel::error, "%s", error.what());
      worker_.reset();
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
  }
  worker_.reset();
}

// ---- the worker process ---------------------------------------------------------------------------------------------
bool Dispatcher::ensure_worker() {
  if (worker_) return true;
  if (failures_ > 0) {
    // 1, 2, 4 ... 30 seconds: a card that is gone for good must not keep a core busy.
    const double pause = std::min(30.0, static_cast<double>(1 << std::min(failures_ - 1, 5)));
    for (double waited = 0; waited < pause && !stopping_; waited += 0.1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    if (stopping_) return false;
  }
  worker_ = std::make_unique<WorkerProcess>(options_.worker_arguments);
  std::string problem, code;
  while (!stopping_) {
    const std::optional<Json> message = worker_->channel().receive(1, wake_fd_);
    drain_wake();
    if (!message && !worker_->channel().closed()) continue;
    if (!message) {
      problem = "the worker did not start: " + worker_->how_it_ended();
      break;
    }
    if (message->at("event").as_string() == "ready") {
      const std::lock_guard lock(mutex_);
      state_.ready = true;
      state_.problem.clear();
      state_.device = message->at("device").as_string();
      state_.model = message->at("model");
      state_.model_ids = message->at("model_ids");
      state_.pid = message->at("pid").as_int();
      failures_ = 0;
      was_ready_ = true;
      log_.write(LogLevel::info, "worker %lld is ready on %s", static_cast<long long>(state_.pid),
                 state_.device.c_str());
      return true;
    }
    code = message->at("code").as_string();
    problem = message->at("message").as_string();
    break;
  }
  worker_.reset();
  if (stopping_) return false;
  ++failures_;
  log_.write(LogLevel::error, "%s", problem.c_str());
  {
    const std::lock_guard lock(mutex_);
    state_.problem = problem;
  }
  if (!was_ready_ && (code == "usage" || code == "data" || code == "io")) {
    if (on_hopeless) on_hopeless(problem);
    stopping_ = true;
  }
  return false;
}

void Dispatcher::lose_worker(const std::string& reason, const char* label) {
  log_.write(LogLevel::error, "the worker is started again: %s", reason.c_str());
  metrics_.worker_restarted(label);
  worker_.reset();
  const std::lock_guard lock(mutex_);
  state_.ready = false;
  state_.problem = "the worker is started again: " + reason;
  ++state_.restarts;
}

void Dispatcher::listen() {
  while (const std::optional<Json> message = worker_->channel().receive(0)) news(*message);
  if (worker_->channel().closed()) lose_worker("it ended between jobs: " + worker_->how_it_ended(), "crash");
}

bool Dispatcher::news(const Json& message) {
  if (message.at("event").as_string() != "machine") return false;
  const std::lock_guard lock(mutex_);
  machine_ = machine_from_json(message.at("machine"));
  return true;
}

// ---- one job --------------------------------------------------------------------------------------------------------
std::string Dispatcher::part(const Job& job) const {
  return book_.folder(job.id) + strf("/part-%d.", job.attempts) + job.format;
}

void Dispatcher::enter(const Job& job, const char* stage) {
  live_.stage = stage;
  live_.reported = live_.stage_started = now_ms();
  book_.report_progress(job.id, live_);
}

bool Dispatcher::rewrite(const std::shared_ptr<const Job>& job, Json& request) {
  if (!job->rewrite) return true;
  enter(*job, "rewrite prompt");
  try {
    const std::string text = rewriter_.rewrite(job->prompt);
    request.set("prompt", text);
    book_.change(job->id, [&](Job& changed) { changed.request.set("prompt", text); });
  } catch (const Error& error) {
    book_.warn(job->id, std::string("rewrite_prompt: the prompt is used as it is, ") + error.what());
  }
  return !book_.stop_wanted(job->id);
}

bool Dispatcher::condition(const Job& job, Json& request) {
  if (!conditioner_.enabled() || job.text_only) return true;
  enter(job, "encode text elsewhere");
  try {
    std::map<std::string, std::string> inputs;
    for (const auto& [field, file] : job.inputs) inputs[field] = read_file(book_.input(file));
    const std::string bytes = conditioner_.encode(request, inputs);
    const std::string file = embeddings(job);
    AtomicFile out(file);
    out.write(bytes.data(), bytes.size());
    out.commit();
    (void)read_saved_text(file);
    request.set("prompt_embeds", file);
  } catch (const Error& error) {
    const std::string reason = std::string("conditioner: ") + error.what();
    if (!options_.encodes) {
      book_.fail_job(job.id, "conditioner_failed", reason + "; this server has no text encoder of its own");
      metrics_.job_finished("failed");
      return false;
    }
    book_.warn(job.id, reason + "; the prompt was encoded here");
  }
  if (!book_.stop_wanted(job.id)) return true;
  book_.end_cancelled(job.id);
  metrics_.job_finished("cancelled");
  return false;
}

void Dispatcher::run(const std::shared_ptr<const Job>& job) {
  live_ = {};
  live_.steps = job->evaluations;
  make_folders(book_.folder(job->id));
  Json request = job->request;
  if (!rewrite(job, request)) {
    book_.end_cancelled(job->id);
    metrics_.job_finished("cancelled");
    return;
  }
  if (!condition(*job, request)) return;
  {
    const std::lock_guard lock(mutex_);
    state_.turbo = job->turbo;
  }
  Channel& channel = worker_->channel();
  channel.send(Json::object({{"op", "run"},
                             {"job", job->id},
                             {"attempt", job->attempts},
                             {"output", part(*job)},
                             {"text_only", job->text_only},
                             {"request", std::move(request)}}));
  bool stop_sent = false;
  Clock::time_point stop_time{};
  for (;;) {
    const std::optional<Json> message = channel.receive(1, wake_fd_);
    drain_wake();
    if (stopping_) {
      worker_.reset();  // before the job is queued again, so that nobody writes its files any more
      return book_.requeue(job->id, "", false);
    }
    if (!stop_sent && book_.stop_wanted(job->id)) {
      channel.send(Json::object({{"op", "stop"}, {"job", job->id}}));
      stop_sent = true;
      stop_time = Clock::now();
    }
    if (message && !news(*message) && handle(*job, *message)) return;
    if (!message && channel.closed()) return worker_died(*job);
    if (stop_sent && seconds_since(stop_time) > options_.stop_seconds) {
      lose_worker("it did not stop when a job was cancelled", "hung");
      book_.end_cancelled(job->id);
      metrics_.job_finished("cancelled");
      return;
    }
  }
}

bool Dispatcher::handle(const Job& job, const Json& message) {
  if (message.at("job").as_string() != job.id) return false;
  const std::string& event = message.at("event").as_string();
  if (event == "progress") {
    progress(job, message);
  } else if (event == "preview") {
    std::string png;
    if (decode_base64(message.at("png").as_string(), png)) {
      book_.report_preview(job.id, std::move(png), static_cast<int>(message.at("step").as_int()));
    }
  } else if (event == "done") {
    finish(job, message.at("report"));
    return true;
  } else if (event == "failed") {
    failed(job, message.at("code").as_string(), message.at("message").as_string());
    return true;
  }
  return false;
}

void Dispatcher::progress(const Job& job, const Json& message) {
  const std::string& stage = message.at("stage").as_string();
  const int64_t now = now_ms();
  if (stage != live_.stage) live_.stage_started = now;
  live_.stage = stage;
  live_.done = message.at("done").as_int();
  live_.total = message.at("total").as_int();
  live_.reported = now;
  const std::string phase = phase_of(stage);
  if (phase == "denoise") live_.step = static_cast<int>(live_.done);
  if (phase == "decode") live_.step = live_.steps;

  // Shares of the whole: as measured here, else a typical division.
  const Estimate estimate = estimator_.estimate(work_of(job));
  std::map<std::string, double> share = {{"prepare", 0.05}, {"denoise", 0.75}, {"decode", 0.2}};
  if (estimate.seconds > 0) {
    for (const auto& [name, seconds] : estimate.stages) share[name] = seconds / estimate.seconds;
  }
  double part_done = live_.total > 0 ? static_cast<double>(live_.done) / static_cast<double>(live_.total) : 0;
  if (stage == "decode audio") part_done *= 0.2;
  if (stage == "decode video") part_done = 0.2 + 0.8 * part_done;
  double before = 0;
  if (phase != "prepare") before += share["prepare"];
  if (phase == "decode") before += share["denoise"];
  live_.progress = std::clamp(before + share[phase] * part_done, live_.progress, 0.999);

  const double elapsed = static_cast<double>(now - live_.stage_started) / 1000;
  if (phase == "denoise" && live_.done > 0) {
    const double left = elapsed / static_cast<double>(live_.done) * static_cast<double>(live_.total - live_.done);
    live_.eta_seconds = left + (estimate.seconds > 0 ? estimate.stages.at("decode") : 0);
  } else if (estimate.seconds > 0) {
    live_.eta_seconds = estimate.seconds * (1 - live_.progress);
  } else if (phase == "decode" && part_done > 0.1) {
    live_.eta_seconds = elapsed * (1 - part_done) / part_done;
  }
  book_.report_progress(job.id, live_);
}

void Dispatcher::finish(const Job& job, const Json& report) {
  if (book_.stop_wanted(job.id)) {  // too late to save the work, but the client was told that it is cancelled
    book_.end_cancelled(job.id);
    metrics_.job_finished("cancelled");
    return;
  }
  try {
    const std::string clip = part(job), text = report.dump() + "\n";
    sync_file(clip);
    struct stat info {};
    if (::stat(clip.c_str(), &info) != 0 || info.st_size == 0) fail(Code::io, "the clip is empty");
    const std::string report_path = book_.folder(job.id) + "/report.json";
    AtomicFile file(report_path);
    file.write(text.data(), text.size());
    file.commit();
    sync_file(report_path);
    ::unlink(embeddings(job).c_str());
    if (!job.output.empty()) outputs_.publish(clip, job.output, "output");
    // From here on the job is done, even if the ledger does not hear of it before a power cut (JobBook::recover_job).
    if (::rename(clip.c_str(), book_.clip(job).c_str()) != 0) fail(Code::io, "cannot rename %s", clip.c_str());
    sync_folder(book_.folder(job.id));
    book_.complete(job.id, report, info.st_size);
    metrics_.job_finished("completed");
    metrics_.job_report(report);
  } catch (const Error& error) {
    failed(job, "io", error.what());
  } catch (const ApiError& error) {
    failed(job, "io", error.message);
  }
}

void Dispatcher::failed(const Job& job, const std::string& code, const std::string& message) {
  if (code == "cancelled") {
    book_.end_cancelled(job.id);
    metrics_.job_finished("cancelled");
    return;
  }
  if (code == "device") {
    // Its context cannot be trusted after this; a new process gets a new one.
    lose_worker(message, "device");
    return retry_or_fail(job, "device_error", message);
  }
  book_.fail_job(job.id, code, message);
  metrics_.job_finished("failed");
  log_.write(LogLevel::warn, "job %s failed: %s", job.id.c_str(), message.c_str());
}

void Dispatcher::worker_died(const Job& job) {
  const std::string reason = worker_->how_it_ended();
  lose_worker(reason, "crash");
  if (book_.stop_wanted(job.id)) {
    book_.end_cancelled(job.id);
    metrics_.job_finished("cancelled");
    return;
  }
  retry_or_fail(job, "worker_crashed", "the worker ended in the middle: " + reason);
}

void Dispatcher::retry_or_fail(const Job& job, const char* code, const std::string& reason) {
  if (job.attempts < 2) {
    return book_.requeue(job.id, reason + "; the worker was started again and the job is tried once more", true);
  }
  book_.fail_job(job.id, code, reason + "; this was the second attempt");
  metrics_.job_finished("failed");
}

}  // namespace h3::server
