// h3 bench attention.
#include <cstdio>

#include "apps/cli/command.h"
#include "apps/cli/run_flags.h"
#include "apps/cli/terminal.h"
#include "base/error.h"
#include "bench/attention.h"

namespace h3 {

int run_bench_attention(Arguments& arguments) {
  Terminal terminal(level_of(arguments));
  AttentionBench options;
  if (arguments.has("rows")) options.rows = row_counts(arguments.text("rows"));
  options.repeats = arguments.whole("repeats", options.repeats);
  if (options.repeats < 1 || options.repeats > 1000) {
    fail(Code::usage, "--repeats: %d is not allowed, give 1 to 1000, for example 7", options.repeats);
  }
  run_attention_bench(arguments.text("device", "auto"), arguments.whole("threads", 0), terminal.log(), options,
                      [](const Json& row) {
                        std::printf("%s\n", row.dump().c_str());
                        std::fflush(stdout);
                      });
  return 0;
}

}  // namespace h3
