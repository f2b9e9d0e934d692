// All jobs of this server: the queue, the running one, and the finished ones that are still kept. Every change is in
// the ledger before anybody hears of it.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apps/server/estimator.h"
#include "apps/server/job.h"
#include "apps/server/ledger.h"
#include "base/log.h"

namespace h3::server {

struct BookOptions {
  std::string data_dir;
  int max_queue = 8;  // waiting jobs; more are refused
  int keep_jobs = 200;
  double keep_hours = 24 * 7;
  int64_t keep_bytes = int64_t{20} << 30;  // of all finished jobs
};

// A job at one moment. `job` is never changed once it is published.
struct Snapshot {
  std::shared_ptr<const Job> job;
  Live live;                 // of the running job
  int queue_position = 0;    // from 1; 0 = not waiting
  double wait_seconds = -1;  // until it starts; -1 = unknown or not waiting
  uint64_t version = 0;      // grows with every change of this job
};

class JobBook {
 public:
  JobBook(const BookOptions& options, Estimator& estimator, Log& log);
  ~JobBook();

  // ---- for clients
  struct Accepted {
    Snapshot snapshot;
    bool replayed = false;  // the key was seen before with the same request
  };
  // ApiError 503 when the queue is full, 409 when the key belongs to another request.
  Accepted submit(Job job);
  // A job with this key: the same request, a different one (ApiError 409), or none.
  std::optional<Snapshot> find_key(const std::string& key, const std::string& fingerprint) const;
  std::optional<Snapshot> find(const std::string& id) const;
  std::vector<Snapshot> list() const;  // newest first
  // ApiError 409 when it has finished already. A waiting job is cancelled at once, a running one within two blocks.
  void cancel(const std::string& id, const std::string& reason);
  // Place in the queue, from 1. ApiError 409 unless it waits.
  void move(const std::string& id, int place);
  void erase(const std::string& id);  // a finished job with its files
  // Returns when the version of the job differs from `seen`, it is gone, or the time is over.
  void wait(const std::string& id, uint64_t seen, double seconds) const;
  int waiting() const;
  bool running() const;

  // ---- for the dispatcher
  // The next job, now in progress, or null when the time is over.
  std::shared_ptr<const Job> take(double seconds);
  bool stop_wanted(const std::string& id) const;
  void report_progress(const std::string& id, const Live& live);  // keeps the preview
  void report_preview(const std::string& id, std::string png, int step);
  void warn(const std::string& id, const std::string& warning);
  void change(const std::string& id, const std::function<void(Job&)>& edit);
  void complete(const std::string& id, Json report, int64_t bytes);
  void fail_job(const std::string& id, const std::string& code, const std::string& message);
  void end_cancelled(const std::string& id);
  // Back to the front of the queue; `counts` = this was an attempt.
  void requeue(const std::string& id, const std::string& warning, bool counts);
  std::function<void()> on_stop_wanted;  // wakes the dispatcher; set before the first request

  void retain();  // drops what is over the limits
  void wake_all();

  // ---- files
  std::string folder(const std::string& id) const { return options_.data_dir + "/jobs/" + id; }
  std::string clip(const Job& job) const { return folder(job.id) + "/clip." + job.format; }
  std::string input(const std::string& file) const { return options_.data_dir + "/inputs/" + file; }
  // Stores bytes under their hash; the same bytes twice are one file. Held until a job refers to it.
  std::string store_input(std::string_view bytes, const std::string& ending);
  void release_input(const std::string& file);

 private:
  struct Entry {
    std::shared_ptr<const Job> job;
    Live live;
    uint64_t version = 1;
  };
  using Entries = std::map<std::string, Entry>;

  void recover();
  void recover_job(Job& job);
  void sweep_files();
  Entry& at(const std::string& id);
  Snapshot snapshot(const Entry& entry) const;
  std::vector<const Entry*> queue() const;
  double running_seconds_left() const;
  int retry_after() const;  // seconds after which half of the queue should be free
  void touch_queue();
  void edit(Entry& entry, const std::function<void(Job&)>& change);
  void finish(Entry& entry, Status status, const std::function<void(Job&)>& change);
  void drop(const std::string& id);
  bool input_used(const std::string& file) const;

  const BookOptions options_;
  Estimator& estimator_;
  Log& log_;
  Ledger ledger_;
  int lock_fd_ = -1;          // of the data folder: two servers on one are refused
  std::mutex writer_;         // taken before mutex_; see edit()
  mutable std::mutex mutex_;  // of everything below
  mutable std::condition_variable changed_;
  Entries entries_;
  std::map<std::string, std::string> keys_;  // idempotency key -> id
  std::multiset<std::string> held_inputs_;
  std::string running_;
};

}  // namespace h3::server
