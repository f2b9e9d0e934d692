#include "apps/server/job_book.h"

#include <dirent.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "apps/server/http.h"
#include "apps/server/paths.h"
#include "base/error.h"
#include "base/file_map.h"

namespace h3::server {
namespace {

// Opened before the ledger, so that a second server is told which folder is taken instead of "database is locked".
std::string prepared(const BookOptions& options, int& lock_fd) {
  for (const char* sub : {"/jobs", "/inputs"}) make_folders(options.data_dir + sub);
  const std::string lock = options.data_dir + "/lock";
  lock_fd = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_fd < 0 || ::flock(lock_fd, LOCK_EX | LOCK_NB) != 0) {
    if (lock_fd >= 0) ::close(lock_fd);
    fail(Code::usage, "data-dir: %s is in use by another server, give each its own", options.data_dir.c_str());
  }
  return options.data_dir + "/jobs.db";
}

ApiError unknown_job(const std::string& id) {
  return {
      404,  "not_found",      "there is no job \"" + id.substr(0, 60) + "\"; it may have been deleted or have expired",
      "id", id.substr(0, 60), "an id from GET /v1/videos",
      0};
}

std::string sha256(std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) != 1) {
    fail(Code::io, "cannot hash an upload");
  }
  std::string text;
  for (unsigned int i = 0; i < size; ++i) text += strf("%02x", digest[i]);
  return text;
}

}  // namespace

JobBook::JobBook(const BookOptions& options, Estimator& estimator, Log& log)
    : options_(options), estimator_(estimator), log_(log), ledger_(prepared(options_, lock_fd_)) {
  recover();
}

JobBook::~JobBook() {
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

// ---- after a stop ---------------------------------------------------------------------------------------------------
void JobBook::recover() {
  std::vector<Job> jobs = ledger_.load();
  std::sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) { return a.completed < b.completed; });
  for (Job& job : jobs) {
    const bool open = !finished(job.status);
    if (open) {
      recover_job(job);
      ledger_.update(job);
      log_.write(LogLevel::warn, "job %s from before the restart is now %s", job.id.c_str(), name_of(job.status));
    }
    if (!job.idempotency_key.empty()) keys_[job.idempotency_key] = job.id;
    if (job.status == Status::completed && !job.text_only) estimator_.learn(work_of(job), job.report);
    const std::string id = job.id;
    entries_[id].job = std::make_shared<const Job>(std::move(job));
  }
  sweep_files();
  retain();
}

void JobBook::recover_job(Job& job) {
  const auto end = [&](Status status, const char* code, const char* message) {
    job.status = status;
    job.completed = now_ms();
    job.error_code = code;
    job.error_message = message;
  };
  if (!job.cancel_reason.empty()) return end(Status::cancelled, "", "");
  if (job.attached) {
    job.cancel_reason = "the client's connection ended with the server";
    return end(Status::cancelled, "", "");
  }
  if (job.status == Status::queued) return;
  struct stat info {};
  const std::string report = folder(job.id) + "/report.json";
  // The clip gets its name after its report and its copy in the output folder, and all before the ledger: it is done.
  if (::stat(clip(job).c_str(), &info) == 0 && ::access(report.c_str(), R_OK) == 0) {
    job.report = Json::parse(read_file(report), report);
    job.bytes = info.st_size;
    return end(Status::completed, "", "");
  }
  if (job.attempts >= 2) {
    return end(Status::failed, "server_restarted",
               "the server stopped twice while this job ran, so it is not tried again");
  }
  job.status = Status::queued;
  job.warnings.push_back("the server stopped while this job ran; it is tried once more");
}

// Removes what no job refers to: half-written clips, folders and inputs of requests that were never accepted.
void JobBook::sweep_files() {
  const auto names = [](const std::string& path) {
    std::vector<std::string> out;
    if (DIR* const folder = ::opendir(path.c_str())) {
      while (const dirent* const entry = ::readdir(folder)) {
        const std::string name = entry->d_name;
        if (name != "." && name != "..") out.push_back(name);
      }
      ::closedir(folder);
    }
    return out;
  };
  for (const std::string& id : names(options_.data_dir + "/jobs")) {
    if (entries_.count(id) == 0) remove_tree(folder(id));
  }
  for (const auto& [id, entry] : entries_) {
    for (const std::string& file : names(folder(id))) {
      const bool keep =
          entry.job->status == Status::completed && (file == "clip." + entry.job->format || file == "report.json");
      if (!keep) remove_tree(folder(id) + "/" + file);
    }
  }
  for (const std::string& file : names(options_.data_dir + "/inputs")) {
    if (!input_used(file)) ::unlink(input(file).c_str());
  }
}

// ---- looking --------------------------------------------------------------------------------------------------------
JobBook::Entry& JobBook::at(const std::string& id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) throw unknown_job(id);
  return found->second;
}

std::vector<const JobBook::Entry*> JobBook::queue() const {
  std::vector<const Entry*> waiting;
  for (const auto& [id, entry] : entries_) {
    if (entry.job->status == Status::queued) waiting.push_back(&entry);
  }
  std::sort(waiting.begin(), waiting.end(), [](const Entry* a, const Entry* b) {
    if (a->job->position != b->job->position) return a->job->position < b->job->position;
    return a->job->created < b->job->created;
  });
  return waiting;
}

double JobBook::running_seconds_left() const {
  if (running_.empty()) return 0;
  const Entry& entry = entries_.at(running_);
  const double eta = eta_now(entry.live);
  if (eta >= 0) return eta;
  const double whole = estimator_.estimate(work_of(*entry.job)).seconds;
  return whole < 0 ? -1 : whole;
}

Snapshot JobBook::snapshot(const Entry& entry) const {
  Snapshot out{entry.job, {}, 0, -1, entry.version};
  if (entry.job->status == Status::in_progress) out.live = entry.live;
  if (entry.job->status != Status::queued) return out;
  double wait = running_seconds_left();
  for (const Entry* const before : queue()) {
    ++out.queue_position;
    if (before == &entry) break;
    const double seconds = estimator_.estimate(work_of(*before->job)).seconds;
    wait = wait < 0 || seconds < 0 ? -1 : wait + seconds;
  }
  out.wait_seconds = wait;
  return out;
}

std::optional<Snapshot> JobBook::find(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return std::nullopt;
  return snapshot(found->second);
}

std::optional<Snapshot> JobBook::find_key(const std::string& key, const std::string& fingerprint) const {
  const std::lock_guard lock(mutex_);
  const auto known = keys_.find(key);
  if (known == keys_.end()) return std::nullopt;
  const Entry& entry = entries_.at(known->second);
  if (entry.job->fingerprint != fingerprint) {
    throw ApiError{409,
                   "idempotency_conflict",
                   "Idempotency-Key: it belongs to another request (" + entry.job->id + "), use a new one",
                   "Idempotency-Key",
                   key.substr(0, 60),
                   "a key that was not used for another request",
                   0};
  }
  return snapshot(entry);
}

std::vector<Snapshot> JobBook::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<Snapshot> all;
  for (const auto& [id, entry] : entries_) all.push_back(snapshot(entry));
  std::sort(all.begin(), all.end(), [](const Snapshot& a, const Snapshot& b) {
    if (a.job->created != b.job->created) return a.job->created > b.job->created;
    return a.job->id > b.job->id;
  });
  return all;
}

void JobBook::wait(const std::string& id, uint64_t seen, double seconds) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] {
    const auto found = entries_.find(id);
    return found == entries_.end() || found->second.version != seen;
  });
}

int JobBook::waiting() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(queue().size());
}

bool JobBook::running() const {
  const std::lock_guard lock(mutex_);
  return !running_.empty();
}

int JobBook::retry_after() const {
  const std::lock_guard lock(mutex_);
  constexpr double kUnknown = 10;  // seconds per job before the first one was measured
  const double left = running_seconds_left();
  double total = left < 0 ? kUnknown : left;
  const std::vector<const Entry*> waiting = queue();
  for (size_t i = 0; i < waiting.size() / 2; ++i) {
    const double seconds = estimator_.estimate(work_of(*waiting[i]->job)).seconds;
    total += seconds < 0 ? kUnknown : seconds;
  }
  return static_cast<int>(std::clamp(std::ceil(total), 1.0, 86400.0));
}

// ---- changing -------------------------------------------------------------------------------------------------------
// A sync of the disk may take long, and readers must not wait for it: writers queue at writer_, which alone allows to
// read entries_ without mutex_, and take mutex_ only to publish.
void JobBook::edit(Entry& entry, const std::function<void(Job&)>& change) {
  auto changed = std::make_shared<Job>(*entry.job);
  change(*changed);
  ledger_.update(*changed);
  const std::lock_guard lock(mutex_);
  entry.job = std::move(changed);
  ++entry.version;
  changed_.notify_all();
}

void JobBook::finish(Entry& entry, Status status, const std::function<void(Job&)>& change) {
  const std::string id = entry.job->id;
  edit(entry, [&](Job& job) {
    job.status = status;
    job.completed = now_ms();
    change(job);
  });
  {
    const std::lock_guard lock(mutex_);
    entry.live = {};
    if (running_ == id) running_.clear();
  }
  if (status != Status::completed) remove_tree(folder(id));
}

// Places in the queue have changed for everybody who waits.
void JobBook::touch_queue() {
  const std::lock_guard lock(mutex_);
  for (auto& [id, entry] : entries_) {
    if (entry.job->status == Status::queued) ++entry.version;
  }
  changed_.notify_all();
}

JobBook::Accepted JobBook::submit(Job job) {
  const std::lock_guard writer(writer_);
  if (!job.idempotency_key.empty()) {
    if (const std::optional<Snapshot> before = find_key(job.idempotency_key, job.fingerprint)) return {*before, true};
  }
  const std::vector<const Entry*> waiting = queue();
  const size_t busy = waiting.size() + (running_.empty() ? 0 : 1);
  if (busy >= static_cast<size_t>(options_.max_queue) + 1) {
    const int seconds = retry_after();
    throw ApiError{503,
                   "queue_full",
                   strf("the queue is full (%zu jobs wait), try again in %d seconds", waiting.size(), seconds),
                   "",
                   "",
                   "",
                   seconds};
  }
  job.position = waiting.empty() ? 1 : waiting.back()->job->position + 1;
  ledger_.insert(job);
  const std::string id = job.id;
  const std::lock_guard lock(mutex_);
  if (!job.idempotency_key.empty()) keys_[job.idempotency_key] = id;
  Entry& entry = entries_[id];
  entry.job = std::make_shared<const Job>(std::move(job));
  changed_.notify_all();
  return {snapshot(entry), false};
}

void JobBook::cancel(const std::string& id, const std::string& reason) {
  {
    const std::lock_guard writer(writer_);
    Entry& entry = at(id);
    if (entry.job->status == Status::queued) {
      finish(entry, Status::cancelled, [&](Job& job) { job.cancel_reason = reason; });
      touch_queue();
      return;
    }
    if (finished(entry.job->status)) {
      throw ApiError{409,
                     "already_finished",
                     "job " + id + " is " + name_of(entry.job->status) + " and cannot be cancelled",
                     "id",
                     id,
                     "a job that is queued or in_progress",
                     0};
    }
    if (entry.job->cancel_reason.empty()) edit(entry, [&](Job& job) { job.cancel_reason = reason; });
  }
  if (on_stop_wanted) on_stop_wanted();
}

void JobBook::move(const std::string& id, int place) {
  const std::lock_guard writer(writer_);
  Entry& entry = at(id);
  if (entry.job->status != Status::queued) {
    throw ApiError{
        409,  "not_queued", "job " + id + " is " + name_of(entry.job->status) + ", only waiting jobs can be moved",
        "id", id,           "a job that is queued",
        0};
  }
  std::vector<const Entry*> others = queue();
  others.erase(std::find(others.begin(), others.end(), &entry));
  const size_t index = static_cast<size_t>(std::clamp(place - 1, 0, static_cast<int>(others.size())));
  double position = 1;
  if (!others.empty() && index == 0) position = others.front()->job->position - 1;
  if (!others.empty() && index == others.size()) position = others.back()->job->position + 1;
  if (index > 0 && index < others.size()) {
    position = (others[index - 1]->job->position + others[index]->job->position) / 2;
  }
  edit(entry, [&](Job& job) { job.position = position; });
  touch_queue();
}

void JobBook::drop(const std::string& id) {
  const std::shared_ptr<const Job> job = at(id).job;
  ledger_.erase(id);
  {
    const std::lock_guard lock(mutex_);
    if (!job->idempotency_key.empty()) keys_.erase(job->idempotency_key);
    entries_.erase(id);
    changed_.notify_all();
  }
  remove_tree(folder(id));
  for (const auto& [field, file] : job->inputs) {
    const std::lock_guard lock(mutex_);
    if (!input_used(file)) ::unlink(input(file).c_str());
  }
}

void JobBook::erase(const std::string& id) {
  const std::lock_guard writer(writer_);
  if (!finished(at(id).job->status)) {
    throw ApiError{409, "not_finished", "job " + id + " still runs, cancel it first", "id", id, "a finished job", 0};
  }
  drop(id);
}

void JobBook::retain() {
  const std::lock_guard writer(writer_);
  std::vector<std::shared_ptr<const Job>> done;
  for (const auto& [id, entry] : entries_) {
    if (finished(entry.job->status)) done.push_back(entry.job);
  }
  std::sort(done.begin(), done.end(), [](const auto& a, const auto& b) { return a->completed > b->completed; });
  const int64_t oldest = now_ms() - static_cast<int64_t>(options_.keep_hours * 3'600'000);
  int64_t bytes = 0;
  int count = 0;
  for (const std::shared_ptr<const Job>& job : done) {
    ++count;
    bytes += job->bytes;
    if (count > options_.keep_jobs || job->completed < oldest || bytes > options_.keep_bytes) drop(job->id);
  }
}

void JobBook::wake_all() {
  const std::lock_guard lock(mutex_);
  for (auto& [id, entry] : entries_) ++entry.version;
  changed_.notify_all();
}

// ---- the dispatcher's side ------------------------------------------------------------------------------------------
std::shared_ptr<const Job> JobBook::take(double seconds) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !queue().empty(); });
  }
  const std::lock_guard writer(writer_);
  const std::vector<const Entry*> waiting = queue();
  if (waiting.empty()) return nullptr;
  Entry& entry = at(waiting.front()->job->id);
  edit(entry, [](Job& job) {
    job.status = Status::in_progress;
    job.started = now_ms();
    ++job.attempts;
  });
  {
    const std::lock_guard lock(mutex_);
    entry.live = {};
    running_ = entry.job->id;
  }
  touch_queue();
  return entry.job;
}

bool JobBook::stop_wanted(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  return found == entries_.end() || !found->second.job->cancel_reason.empty();
}

void JobBook::report_progress(const std::string& id, const Live& live) {
  const std::lock_guard lock(mutex_);
  Entry& entry = at(id);
  Live next = live;
  next.preview = std::move(entry.live.preview);
  next.preview_step = entry.live.preview_step;
  next.preview_version = entry.live.preview_version;
  entry.live = std::move(next);
  ++entry.version;
  changed_.notify_all();
}

void JobBook::report_preview(const std::string& id, std::string png, int step) {
  const std::lock_guard lock(mutex_);
  Entry& entry = at(id);
  entry.live.preview = std::move(png);
  entry.live.preview_step = step;
  ++entry.live.preview_version;
  ++entry.version;
  changed_.notify_all();
}

void JobBook::change(const std::string& id, const std::function<void(Job&)>& change) {
  const std::lock_guard writer(writer_);
  edit(at(id), change);
}

void JobBook::warn(const std::string& id, const std::string& warning) {
  change(id, [&](Job& job) { job.warnings.push_back(warning); });
}

void JobBook::complete(const std::string& id, Json report, int64_t bytes) {
  const std::lock_guard writer(writer_);
  Entry& entry = at(id);
  if (!entry.job->text_only) estimator_.learn(work_of(*entry.job), report);
  finish(entry, Status::completed, [&](Job& job) {
    job.report = std::move(report);
    job.bytes = bytes;
  });
}

void JobBook::fail_job(const std::string& id, const std::string& code, const std::string& message) {
  const std::lock_guard writer(writer_);
  finish(at(id), Status::failed, [&](Job& job) {
    job.error_code = code;
    job.error_message = message;
  });
}

void JobBook::end_cancelled(const std::string& id) {
  const std::lock_guard writer(writer_);
  finish(at(id), Status::cancelled, [](Job&) {});
}

void JobBook::requeue(const std::string& id, const std::string& warning, bool counts) {
  const std::lock_guard writer(writer_);
  Entry& entry = at(id);
  const std::vector<const Entry*> waiting = queue();
  const double front = waiting.empty() ? 1 : waiting.front()->job->position - 1;
  edit(entry, [&](Job& job) {
    job.status = Status::queued;
    job.position = front;
    if (!warning.empty()) job.warnings.push_back(warning);
    if (!counts) --job.attempts;
  });
  {
    const std::lock_guard lock(mutex_);
    entry.live = {};
    running_.clear();
  }
  touch_queue();
}

// ---- inputs ---------------------------------------------------------------------------------------------------------
bool JobBook::input_used(const std::string& file) const {
  if (held_inputs_.count(file) > 0) return true;
  for (const auto& [id, entry] : entries_) {
    for (const auto& [field, name] : entry.job->inputs) {
      if (name == file) return true;
    }
  }
  return false;
}

std::string JobBook::store_input(std::string_view bytes, const std::string& ending) {
  const std::string file = sha256(bytes) + ending;
  {
    const std::lock_guard lock(mutex_);
    held_inputs_.insert(file);
  }
  struct stat info {};
  if (::stat(input(file).c_str(), &info) == 0 && info.st_size == static_cast<off_t>(bytes.size())) return file;
  // Two requests may store the same bytes at once: each through its own name.
  const std::string part = input(file) + "." + new_job_id();
  try {
    {
      AtomicFile to(part);
      to.write(bytes.data(), bytes.size());
      to.commit();
    }
    sync_file(part);
    if (::rename(part.c_str(), input(file).c_str()) != 0) fail(Code::io, "cannot write %s", input(file).c_str());
    sync_folder(options_.data_dir + "/inputs");
  } catch (...) {
    ::unlink(part.c_str());
    release_input(file);
    throw;
  }
  return file;
}

void JobBook::release_input(const std::string& file) {
  const std::lock_guard lock(mutex_);
  const auto held = held_inputs_.find(file);
  if (held != held_inputs_.end()) held_inputs_.erase(held);
  if (!input_used(file)) ::unlink(input(file).c_str());
}

}  // namespace h3::server
