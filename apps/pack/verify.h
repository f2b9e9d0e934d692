// What `h3 verify` checks of a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/thread_pool.h"

namespace h3 {

struct VerifyReport {
  std::vector<std::string> lines;  // one per fault, or one that says all is well
  bool good = true;
  uint64_t hashed_bytes = 0;
  double seconds = 0;
};

// A CMF file: every hash. Any other model file: header, offsets, shapes and names, as opening it checks them.
VerifyReport verify_file(const std::string& path, ThreadPool& pool);

// Mends `path` from `source`, another copy of it.
VerifyReport repair_file(const std::string& path, const std::string& source, ThreadPool& pool);

}  // namespace h3
