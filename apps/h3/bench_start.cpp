// h3 bench start.
#include <cstdio>

#include "apps/cli/command.h"
#include "apps/cli/run_flags.h"
#include "apps/cli/terminal.h"
#include "bench/bench.h"
#include "bench/start.h"

namespace h3 {

int run_bench_start(Arguments& arguments) {
  Terminal terminal(level_of(arguments));
  SessionOptions session = session_options(arguments);
  session.models.insert(session.models.begin(), arguments.positional.begin(), arguments.positional.end());
  Request request = arguments.request();
  if (request.prompt.empty()) request.prompt = kAnyPrompt;
  const Json row = bench_start(session, request, terminal.log());
  std::printf("%s\n", arguments.on("json") ? row.dump().c_str() : bench_line(row).c_str());
  return 0;
}

}  // namespace h3
