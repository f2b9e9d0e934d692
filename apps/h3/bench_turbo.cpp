// h3 bench turbo.
#include <cstdio>

#include "apps/cli/command.h"
#include "apps/cli/run_flags.h"
#include "apps/cli/terminal.h"
#include "base/error.h"
#include "bench/turbo.h"

namespace h3 {

int run_bench_turbo(Arguments& arguments) {
  Terminal terminal(level_of(arguments));
  TurboBench options;
  options.layers = arguments.whole("layers", 50);
  run_turbo_bench(arguments.text("device", "auto"), arguments.whole("threads", 0), terminal.log(), options,
                  [](const Json& row) {
                    std::printf("%s\n", row.dump().c_str());
                    std::fflush(stdout);
                  });
  return 0;
}

}  // namespace h3
