// Checking every hash of a CMF file, and mending a damaged copy from a sound one.
#pragma once

#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "store/cmf.h"

namespace h3 {

// Bytes of the file that are not what they should be.
struct CmfFault {
  std::string what;  // "tensor 'dit.blocks.0.norm1.weight'", "header", "end of the file"
  uint64_t offset = 0, bytes = 0;
  std::string problem;
};

struct CmfVerdict {
  std::vector<CmfFault> faults;  // truncation first, then by offset
  uint64_t hashed_bytes = 0;
  int64_t tensors = 0, strong = 0;  // checked by hash64, and by XXH3-128 as well
};

// Error(data) when the envelope, the header or the directory cannot be read at all; everything else is a fault.
CmfVerdict verify_cmf(const std::string& path, ThreadPool& pool);

struct CmfRepair {
  std::vector<CmfFault> mended;  // ranges copied from the source
  bool truncated = false;        // the end was missing
};

// Copies the ranges of `path` that are damaged from `source`, another copy of the same file, and nothing else. In
// place: a second copy of tens of gigabytes may not fit the disk, and a repair that was interrupted can be run again.
// Error(data) when the two are not copies of one file, or a range is damaged in the source too; then nothing is
// written.
CmfRepair repair_cmf(const std::string& path, const std::string& source, ThreadPool& pool);

}  // namespace h3
