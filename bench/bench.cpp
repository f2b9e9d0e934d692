#include "bench/bench.h"

#include <algorithm>

#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"
#include "bench/ops.h"
#include "model/synthetic.h"
#include "ops/shadow.h"
#include "pipeline/acceleration.h"
#include "pipeline/precision.h"
#include "pipeline/session.h"

namespace h3 {
namespace {

Compute decoder_compute(Compute compute) {
  return compute == Compute::packed || compute == Compute::int8 ? Compute::bf16 : compute;
}

// A whole clip through the engine, weights made by hash; frames and sound go nowhere.
Json bench_clip(const BenchOptions& options, Log& log) {
  SessionOptions session_options;
  session_options.device = options.device;
  session_options.threads = options.threads;
  session_options.shadow = options.shadow;
  if (options.model.compute == Compute::packed) session_options.synthetic_format = "fp8";
  session_options.synthetic_layers = options.model.layers > 0 ? static_cast<int>(options.model.layers) : 50;
  Session session(session_options, log);
  FrameSink sink;
  int64_t frames = 0;
  sink.frames = [&](const float*, int, int count) { frames += count; };
  sink.audio = [](const float*, int64_t) {};
  const Control control;
  const Request request = clip_request(options.model);
  const RunReport report = session.run(session.resolve(request), control, sink);
  Json stages = Json::array();
  for (const StageTime& stage : report.stages) {
    stages.push(Json::object({{"stage", stage.stage}, {"seconds", stage.seconds}, {"items", stage.items}}));
  }
  Json row = Json::object({{"bench", "e2e"}, {"backend", session.device()}, {"compute", request.precision}});
  row.set("attention", request.attention);
  row.set("size", strf("%dx%dx%d", options.model.width, options.model.height, options.model.frames));
  row.set("frames", frames).set("evaluations", report.evaluations).set("median_s", report.seconds);
  return row.set("peak_ram", report.peak_ram).set("peak_bytes", report.peak_device).set("stages", stages);
}

std::string text_of(const Json& row, const char* key) {
  const Json* value = row.find(key);
  if (value == nullptr) return "";
  return value->is_string() ? value->as_string() : value->dump();
}

double number_of(const Json& row, const char* key) {
  const Json* value = row.find(key);
  return value != nullptr && value->is_number() ? value->as_double() : 0;
}

// What is left of a measurement whose time is the oracle's.
Json without_times(const Json& row) {
  Json out = Json::object({{"shadow", "agrees"}});
  for (const char* key : {"bench", "backend", "compute", "attention", "size", "finite"}) {
    if (const Json* value = row.find(key)) out.set(key, *value);
  }
  return out;
}

// What the device cannot do, before anything is measured.
void check_device(const BenchOptions& options, Ops& ops) {
  if ((options.graphs || options.model.record_blocks > 0) && ops.device().is_host()) {
    fail(Code::usage, "--graph: %s records no calls, give --device cuda:0 or leave it out", ops.name());
  }
  const std::string refused = ops.refuses_eight_bit(release_dit_config(1).head_dim);
  if (options.model.attention == AttentionMath::eight_bit && !refused.empty()) {
    fail(Code::usage, "--attention: 8bit is not possible, %s; give dense", refused.c_str());
  }
}

void bench_shadowed(const BenchOptions& options, Context& context, const std::function<void(const Json& row)>& emit) {
  if (options.kind == BenchKind::ops || options.kind == BenchKind::block) {
    fail(Code::usage,
         "--shadow: this measurement checks its results itself; --shadow is for step, vae, decode, audio and e2e");
  }
  const std::unique_ptr<Ops> ops = make_shadow(make_backend(options.device, context), make_backend("ref", context));
  check_device(options, *ops);
  ModelBench model = options.model;
  model.repeats = 1;
  if (options.kind == BenchKind::step) return emit(without_times(bench_step(*ops, model, {})));
  if (options.kind != BenchKind::audio) emit(without_times(bench_video_decode(*ops, model, {})));
  if (options.kind != BenchKind::decode) emit(without_times(bench_audio_decode(*ops, model)));
}

}  // namespace

Request clip_request(const ModelBench& model) {
  Request request;
  request.prompt = kAnyPrompt;
  request.width = model.width;
  request.height = model.height;
  request.frames = model.frames;
  request.steps = 4;
  request.precision = precision_name(model.compute);
  request.vae_precision = precision_name(decoder_compute(model.compute));
  request.attention = attention_text({.math = model.attention});
  return request;
}

void run_bench(const BenchOptions& options, Log& log, const std::function<void(const Json& row)>& emit) {
  const Compute compute = options.model.compute;
  const bool decodes = options.kind == BenchKind::decode && compute == Compute::packed;
  if ((options.kind == BenchKind::vae || options.kind == BenchKind::decode) && !decodes &&
      decoder_compute(compute) != compute) {
    fail(Code::usage, "--precision: %s does not run in %s, give f32, bf16 or f16",
         options.kind == BenchKind::vae ? "the video encoder" : "the video decoder", precision_name(compute));
  }
  if (options.kind == BenchKind::e2e) {
    const Json row = bench_clip(options, log);
    return emit(options.shadow ? without_times(row) : row);
  }
  ThreadPool pool(options.threads);
  Context context{pool, log};
  if (options.shadow) return bench_shadowed(options, context, emit);
  const std::unique_ptr<Ops> ops = make_backend(options.device, context);
  check_device(options, *ops);
  switch (options.kind) {
    case BenchKind::ops: return bench_ops(*ops, options, emit);
    case BenchKind::block: return bench_block(*ops, options, emit);
    case BenchKind::step: {
      const Ceiling ceiling = measure_ceiling(*ops, options.model.compute);
      if (options.graphs) return bench_graphs(*ops, options.model, ceiling, emit);
      return emit(bench_step(*ops, options.model, ceiling));
    }
    case BenchKind::vae: {
      const Ceiling ceiling = measure_ceiling(*ops, options.model.compute);
      emit(bench_video_decode(*ops, options.model, ceiling));
      emit(bench_video_encode(*ops, options.model, ceiling));
      return emit(bench_audio_decode(*ops, options.model));
    }
    case BenchKind::decode:
      return emit(bench_video_decode(*ops, options.model, measure_ceiling(*ops, options.model.compute)));
    case BenchKind::audio: return emit(bench_audio_decode(*ops, options.model));
    case BenchKind::e2e: break;
  }
}

std::string bench_line(const Json& row) {
  std::string name = text_of(row, "bench");
  for (const char* key : {"op", "shape", "compute", "attention", "size", "kernel"}) {
    if (row.find(key) != nullptr) name += " " + text_of(row, key);
  }
  if (row.find("rows") != nullptr) name += " " + text_of(row, "rows") + " rows";
  if (row.find("shadow") != nullptr) return name + ": every call agrees with the oracle";
  std::string line = strf("%-58s %9.2f ms", name.c_str(), 1e3 * number_of(row, "median_s"));
  if (row.find("tflops") != nullptr) line += strf(" %7.3f TFLOP/s", number_of(row, "tflops"));
  for (const char* key : {"fraction_of_peak", "fraction_of_matmul_ceiling"}) {
    if (row.find(key) != nullptr) line += strf(" %3.0f %% of the peak", 100 * number_of(row, key));
  }
  if (row.find("recorded_blocks") != nullptr) {
    line += strf(" %3.0f blocks recorded at a time: %+.2f %%", number_of(row, "recorded_blocks"),
                 100 * number_of(row, "gain_over_eager"));
  }
  if (row.find("psnr_of_f16_db") != nullptr) line += strf(" %.1f dB of f16", number_of(row, "psnr_of_f16_db"));
  if (row.find("best_fraction") != nullptr) line += strf(" (best %.0f %%)", 100 * number_of(row, "best_fraction"));
  if (row.find("times_onednn") != nullptr) line += strf(" %.2fx oneDNN", number_of(row, "times_onednn"));
  if (const Json* ops = row.find("ops")) {
    for (const Json& part : ops->items()) {
      line += strf("\n  %-16s %5.1f %%", text_of(part, "op").c_str(), 100 * number_of(part, "share"));
      if (part.find("tflops") != nullptr) line += strf(" %7.3f TFLOP/s", number_of(part, "tflops"));
    }
  }
  if (const Json* stages = row.find("stages")) {
    for (const Json& stage : stages->items()) {
      line += strf("\n  %-16s %9.2f s", text_of(stage, "stage").c_str(), number_of(stage, "seconds"));
    }
  }
  return line;
}

}  // namespace h3
