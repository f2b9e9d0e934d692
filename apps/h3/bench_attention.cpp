// h3 bench attention.
#include <cstdio>

#include "apps/cli/command.h"
#include "apps/cli/run_flags.h"
#include "apps/cli/terminal.h"
#include "bench/attention.h"

namespace h3 {

int run_bench_attention(Arguments& arguments) {
  Terminal terminal(level_of(arguments));
  run_attention_bench(arguments.text("device", "auto"), arguments.whole("threads", 0), terminal.log(), {},
                      [](const Json& row) {
                        std::printf("%s\n", row.dump().c_str());
                        std::fflush(stdout);
                      });
  return 0;
}

}  // namespace h3
