#include "bench/start.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bench/timing.h"

namespace h3 {
namespace {

// Seconds since the system started this process, to its clock's tick; 0 where it does not say.
double process_age() {
  std::FILE* const file = std::fopen("/proc/self/stat", "r");
  if (file == nullptr) return 0;
  char text[1024] = {};
  const size_t size = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  const char* at = size > 0 ? std::strrchr(text, ')') : nullptr;  // the name may hold blanks
  unsigned long long started = 0;
  if (at == nullptr ||
      std::sscanf(at, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &started) !=
          1) {
    return 0;
  }
  double up = 0;
  std::FILE* const uptime = std::fopen("/proc/uptime", "r");
  if (uptime == nullptr) return 0;
  const bool read = std::fscanf(uptime, "%lf", &up) == 1;
  std::fclose(uptime);
  return read ? up - static_cast<double>(started) / static_cast<double>(::sysconf(_SC_CLK_TCK)) : 0;
}

}  // namespace

Json bench_start(const SessionOptions& options, const Request& asked, Log& log) {
  const double age = process_age(), here = clock_seconds();
  const auto since_start = [&] { return age + clock_seconds() - here; };
  std::vector<std::pair<std::string, double>> stages = {{"start the program", age}};  // name, seconds
  Session session(options, log);
  for (const StageTime& stage : session.opened()) stages.emplace_back(stage.stage, stage.seconds);
  std::string current = "resolve and place";
  double entered = clock_seconds(), begins = 0, done = 0;
  const auto enter = [&](const char* stage) {
    const double now = clock_seconds();
    stages.emplace_back(current, now - entered);
    entered = now;
    current = stage;
  };
  Control control;
  control.on_progress = [&](const Progress& progress) {
    if (std::strcmp(progress.stage, "denoise") != 0) return;
    if (progress.done == 0) {
      begins = since_start();
      return enter("first evaluation");
    }
    done = since_start();
    enter("");
    control.request_stop();
  };
  FrameSink sink;
  sink.stage = enter;
  Request request = asked;
  request.steps = 2;
  const Resolved resolved = session.resolve(request);
  try {
    session.run(resolved, control, sink);
  } catch (const Error& error) {
    if (error.code() != Code::cancelled) throw;
  }
  Json list = Json::array();
  for (const auto& [name, seconds] : stages) list.push(Json::object({{"stage", name}, {"seconds", seconds}}));
  Json row = Json::object({{"bench", "start"}, {"backend", session.device()}, {"median_s", done}});
  row.set("size", strf("%dx%dx%d", resolved.width, resolved.height, resolved.frames));
  return row.set("first_evaluation_begins_s", begins).set("first_evaluation_done_s", done).set("stages", list);
}

}  // namespace h3
