// Benchmarks of whole models with weights made by hash: one evaluation of the denoiser, one block, the two decoders.
// Correctness first: every result must be finite, and a repeated run must give the same bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/json.h"
#include "ops/ops.h"

namespace h3 {

struct ModelBench {
  int width = 960, height = 544, frames = 124, text_rows = 16;
  int64_t layers = 0;                              // 0 = the release's
  Compute compute = Compute::bf16;                 // packed: weights in e4m3, multiplied as they are stored
  int repeats = 5;                                 // odd numbers give a median that was measured
  int64_t record_blocks = 0;                       // of an evaluation, recorded at a time (DitRequest)
  AttentionMath attention = AttentionMath::exact;  // of the blocks
};

// Rates of this device, measured: what a fraction of the ceiling refers to.
struct Ceiling {
  double matmul_tflops = 0;  // at `compute`, 8192 x 8192 x 8192 (2048 on the host)
  double copy_gb_per_s = 0;
};
Ceiling measure_ceiling(Ops& ops, Compute compute);

// Each returns one JSON object: sizes, seconds (median and every repeat), TFLOP, TFLOP/s, fraction of the ceiling,
// device bytes, finite, repeatable.
Json bench_step(Ops& ops, const ModelBench& options, const Ceiling& ceiling);
// The same evaluation eager and recorded one block, two and all at a time, in turns; Error(data) when values differ.
// gain_over_eager: (eager - recorded) / eager.
void bench_graphs(Ops& ops, const ModelBench& options, const Ceiling& ceiling,
                  const std::function<void(const Json&)>& emit);
Json bench_video_decode(Ops& ops, const ModelBench& options, const Ceiling& ceiling);
// A clip as a reference. rel_l2: of one tile against the same encode in f32; above kEncodeLimit is Error(data).
inline constexpr double kEncodeLimit = 2e-3;
Json bench_video_encode(Ops& ops, const ModelBench& options, const Ceiling& ceiling);
Json bench_audio_decode(Ops& ops, const ModelBench& options);

}  // namespace h3
