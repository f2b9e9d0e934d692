// `h3 bench ops|block|step|vae|decode|audio|e2e`: correctness first, then time and the fraction of what the machine can
// do. Every measurement is one JSON object; alternatives are measured in turns within one run, because machines differ
// from minute to minute.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "bench/models.h"
#include "pipeline/request.h"

namespace h3 {

// decode and audio: the parts of vae that end in frames and in sound, alone.
enum class BenchKind : uint8_t { ops, block, step, vae, decode, audio, e2e };

struct BenchOptions {
  BenchKind kind = BenchKind::ops;
  std::string device = "auto";  // as --device
  int threads = 0;              // 0 = one per CPU
  bool graphs = false;          // step: eager beside recorded blocks
  bool shadow = false;          // step, vae and e2e: repeat every call on the oracle and say that it agrees; no times
  ModelBench model;             // attention of step, block and e2e alone; `ops` takes the repeats alone
  std::vector<int64_t> rows;    // ops and block; empty = 1874, respectively 480 and 1874
};

// What `bench e2e` renders: the autoencoders in bf16 beside a transformer in eight bits.
Request clip_request(const ModelBench& model);

// Calls emit once per measurement, in order. Error(data) when a result is wrong, before anything about it is printed.
void run_bench(const BenchOptions& options, Log& log, const std::function<void(const Json& row)>& emit);

// One line of the table of a measurement.
std::string bench_line(const Json& row);

}  // namespace h3
