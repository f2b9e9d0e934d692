// Flags that every command which computes shares.
#pragma once

#include "apps/cli/flags.h"
#include "base/log.h"
#include "pipeline/session.h"

namespace h3 {

LogLevel level_of(const Arguments& arguments);
SessionOptions session_options(const Arguments& arguments);

}  // namespace h3
