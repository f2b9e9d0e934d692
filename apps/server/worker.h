// The process that owns the device. It is this program again, started by the server with a socket: whatever happens to
// it - a lost GPU context, a crash, the kernel's out-of-memory killer - the server, its queue and its clients live on.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/server/channel.h"
#include "pipeline/setup.h"

namespace h3::server {

inline constexpr int kWorkerSocket = 3;  // the worker's end, as descriptor

// For programs that embed the server and watch its worker. Called on the thread that computes, at every place where a
// run can stop (block, tile, layer); an Error that it throws ends the job as one of the engine would.
struct WorkerHooks {
  std::function<void(const std::string& stage, int64_t attempt)> on_check;
};

struct WorkerOptions {
  SessionOptions session;
  WorkerHooks hooks;
  int nice = 5;  // so that the server answers while the worker computes
};

// The worker's main function: serves the socket until it closes. Returns the exit code.
//   to the worker    {"op": "run", "job", "request", "attempt", "output", "text_only"} · {"op": "stop", "job"}
//   from the worker  {"event": "ready", "device", "facts", ...} · {"event": "fatal", "code", "message"}
//                    {"event": "progress", "job", "stage", "done", "total"} · {"event": "preview", "job", "step",
//                    "png"}
//                    {"event": "machine", "machine"} · {"event": "done", "job", "report"} · {"event": "failed", "job",
//                    "code", "message"}
int run_worker(const WorkerOptions& options, Log& log);

// The server's end.
class WorkerProcess {
 public:
  // Starts this program with its own arguments (of the server) plus --worker. Error(io).
  explicit WorkerProcess(const std::vector<std::string>& arguments);
  ~WorkerProcess();  // kills it
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  Channel& channel() { return *channel_; }
  pid_t pid() const { return pid_; }
  // After the channel closed: "it was killed by signal 9 (Killed)", "it ended with code 1".
  std::string how_it_ended();

 private:
  pid_t pid_ = -1;
  std::unique_ptr<Channel> channel_;
};

const char* name_of(Code code);

}  // namespace h3::server
