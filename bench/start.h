// From the start of a process to the end of its first evaluation.
#pragma once

#include "base/json.h"
#include "base/log.h"
#include "pipeline/session.h"

namespace h3 {

// One object: seconds of every stage in order, "first_evaluation_begins_s" and "first_evaluation_done_s" since the
// process began. Renders nothing: the run is stopped there.
Json bench_start(const SessionOptions& options, const Request& request, Log& log);

}  // namespace h3
