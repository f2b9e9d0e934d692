// h3 compare.
#include <cstdio>

#include "apps/cli/command.h"
#include "base/error.h"
#include "pipeline/difference.h"

namespace h3 {

int run_compare(Arguments& arguments) {
  if (arguments.positional.size() != 2) {
    fail(Code::usage, "compare takes two paths, found %zu: h3 compare a.mp4 b.mp4", arguments.positional.size());
  }
  const Difference difference = compare_paths(arguments.positional[0], arguments.positional[1]);
  std::fputs((arguments.on("json") ? difference.to_json().dump(1) + "\n" : difference.to_text()).c_str(), stdout);
  return 0;
}

}  // namespace h3
