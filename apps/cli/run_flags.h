// Flags that every command which computes shares.
#pragma once

#include "apps/cli/flags.h"
#include "base/log.h"
#include "pipeline/session.h"

namespace h3 {

LogLevel level_of(const Arguments& arguments);
// "480,1874"; Error(usage).
std::vector<int64_t> row_counts(const std::string& text);

SessionOptions session_options(const Arguments& arguments);

}  // namespace h3
