// h3 serve, for the program and for programs that watch its worker.
#pragma once

#include "apps/cli/command.h"

namespace h3 {

namespace server {
struct WorkerHooks;
}

int run_serve(Arguments& arguments);
#if H3_HAVE_SERVER
int run_serve(Arguments& arguments, const server::WorkerHooks& hooks);
#endif

}  // namespace h3
