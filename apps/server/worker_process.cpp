#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <cstring>

#include <cerrno>
#include <chrono>
#include <thread>

#include "apps/server/worker.h"
#include "base/error.h"

namespace h3::server {

WorkerProcess::WorkerProcess(const std::vector<std::string>& arguments) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
    fail(Code::io, "cannot start the worker: %s", std::strerror(errno));
  }
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pair[1], kWorkerSocket);
  posix_spawn_file_actions_addclosefrom_np(&actions, kWorkerSocket + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const int error = ::posix_spawn(&pid_, "/proc/self/exe", &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  ::close(pair[1]);
  if (error != 0) {
    ::close(pair[0]);
    fail(Code::io, "cannot start the worker: %s", std::strerror(error));
  }
  channel_ = std::make_unique<Channel>(pair[0]);
}

WorkerProcess::~WorkerProcess() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::string WorkerProcess::how_it_ended() {
  int status = 0;
  pid_t done = 0;
  // The socket closes a moment before the process can be collected; a worker that closed it and hangs is killed.
  for (int i = 0; i < 200 && done == 0; ++i) {
    done = ::waitpid(pid_, &status, WNOHANG);
    if (done == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (done == 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &status, 0);
  }
  pid_ = -1;
  if (WIFSIGNALED(status)) {
    return strf("it was killed by signal %d (%s)", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  }
  return strf("it ended with code %d", WEXITSTATUS(status));
}

const char* name_of(Code code) {
  switch (code) {
    case Code::usage: return "usage";
    case Code::data: return "data";
    case Code::io: return "io";
    case Code::memory: return "memory";
    case Code::device: return "device";
    case Code::numeric: return "numeric";
    case Code::cancelled: return "cancelled";
  }
  return "internal";
}

}  // namespace h3::server
