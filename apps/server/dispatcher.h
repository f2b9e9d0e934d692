// The one thread that gives jobs to the worker process, listens to it, and starts it again when it dies.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "apps/server/forecast.h"
#include "apps/server/job_book.h"
#include "apps/server/metrics.h"
#include "apps/server/paths.h"
#include "apps/server/worker.h"

namespace h3::server {

class Rewriter;
class Conditioner;

struct WorkerState {
  bool ready = false;
  std::string device, problem;  // problem: why it is not ready
  std::string turbo;            // of the last job; "" = none
  Json model, model_ids = Json::array();
  int restarts = 0;
  int64_t pid = 0;
};

struct DispatcherOptions {
  std::vector<std::string> worker_arguments;
  double stop_seconds = 300;  // a worker that does not stop within this is killed
  bool encodes = true;        // the worker has a text encoder
};

// What jobs go through besides the worker.
struct DispatcherParts {
  const Root& outputs;
  const Rewriter& rewriter;
  const Conditioner& conditioner;
  Estimator& estimator;
  Metrics& metrics;
};

class Dispatcher {
 public:
  Dispatcher(const DispatcherOptions& options, JobBook& book, const DispatcherParts& parts, Log& log);
  ~Dispatcher();
  void start();
  // Ends the worker; a running job goes back to the queue.
  void stop();
  WorkerState state() const;
  // The worker's device, for plans; none until it has measured it.
  std::optional<PlanMachine> machine() const;
  // Called on the dispatcher's thread when the very first worker refuses its flags or files: nothing will ever run.
  std::function<void(const std::string& message)> on_hopeless;

 private:
  void loop();
  bool ensure_worker();
  void lose_worker(const std::string& reason, const char* label);
  void listen();                   // between jobs
  bool news(const Json& message);  // true when the message was about the worker itself
  void run(const std::shared_ptr<const Job>& job);
  void enter(const Job& job, const char* stage);
  bool rewrite(const std::shared_ptr<const Job>& job, Json& request);
  // Embeddings from the remote conditioner; without them the worker encodes. False when the job has ended.
  bool condition(const Job& job, Json& request);
  std::string embeddings(const Job& job) const { return book_.folder(job.id) + "/text.safetensors"; }
  bool handle(const Job& job, const Json& message);  // true when the job has ended
  void progress(const Job& job, const Json& message);
  void finish(const Job& job, const Json& report);
  void failed(const Job& job, const std::string& code, const std::string& message);
  void worker_died(const Job& job);
  void retry_or_fail(const Job& job, const char* code, const std::string& reason);
  std::string part(const Job& job) const;
  void drain_wake();

  const DispatcherOptions options_;
  JobBook& book_;
  const Root& outputs_;
  const Rewriter& rewriter_;
  const Conditioner& conditioner_;
  Estimator& estimator_;
  Metrics& metrics_;
  Log& log_;
  int wake_fd_ = -1;  // eventfd: somebody wants the running job to stop, or the server ends
  std::atomic<bool> stopping_{false};
  std::unique_ptr<WorkerProcess> worker_;
  int failures_ = 0;  // starts of the worker that failed in a row
  bool was_ready_ = false;
  Live live_;  // of the running job
  mutable std::mutex mutex_;
  WorkerState state_;
  std::optional<PlanMachine> machine_;
  std::thread thread_;
};

}  // namespace h3::server
