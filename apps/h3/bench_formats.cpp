// h3 bench formats.
#include <cstdio>

#include "apps/cli/command.h"
#include "apps/cli/terminal.h"
#include "bench/formats.h"

namespace h3 {

int run_bench_formats(Arguments& arguments) {
  Log log;
  std::fputs(formats_page(arguments.positional, arguments.whole("threads", 0), log).c_str(), stdout);
  return 0;
}

}  // namespace h3
