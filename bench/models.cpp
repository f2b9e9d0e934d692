#include "bench/models.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/compare.h"
#include "base/context.h"
#include "base/control.h"
#include "base/error.h"
#include "bench/ops.h"
#include "bench/timing.h"
#include "codec/scalar.h"
#include "model/dit/dit.h"
#include "model/synthetic.h"
#include "model/vae/audio_vae.h"
#include "model/vae/video_vae.h"
#include "pipeline/acceleration.h"
#include "pipeline/precision.h"
#include "sampling/rng.h"
#include "sampling/schedule.h"

namespace h3 {
namespace {

// Seconds of each of `repeats` runs, after one that warms up.
std::vector<double> time_runs(Ops& ops, int repeats, const std::function<void()>& run) {
  run();
  ops.sync();
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const double start = clock_seconds();
    run();
    ops.sync();
    seconds.push_back(clock_seconds() - start);
  }
  return seconds;
}

DType activation_of(Compute compute) { return compute == Compute::f32 ? DType::f32 : DType::bf16; }

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

Json report_of(const char* bench, Ops& ops, const std::vector<double>& seconds, double tflop, double ceiling) {
  const double middle = median_of(seconds);
  Json runs = Json::array();
  for (double s : seconds) runs.push(s);
  Json row = Json::object({{"bench", bench}, {"backend", ops.name()}});
  row.set("median_s", middle).set("runs_s", runs).set("tflop", tflop).set("tflops", tflop / middle);
  if (ceiling > 0) row.set("fraction_of_matmul_ceiling", tflop / middle / ceiling);
  row.set("peak_bytes", ops.device().peak_bytes());
  return row;
}

// Floating-point operations of one evaluation (spec dit 10), in units of 10^12.
double step_tflop(const DitConfig& c, double rows) {
  const double linears = static_cast<double>(c.hidden) * (4.0 * c.inner() + 3.0 * c.ffn);
  return static_cast<double>(c.layers) * (2 * rows * linears + 4 * rows * rows * static_cast<double>(c.inner())) / 1e12;
}

LayoutSpec text_to_video(const ModelBench& o) {
  LayoutSpec spec;
  spec.text_tags.assign(static_cast<size_t>(o.text_rows), 1);
  spec.latent_frames = latent_frames(align_frames(o.frames));
  spec.latent_height = o.height / 16;
  spec.latent_width = o.width / 16;
  spec.audio_latents = audio_latents(align_frames(o.frames));
  return spec;
}

}  // namespace

Ceiling measure_ceiling(Ops& ops, Compute compute) {
  const int64_t n = ops.device().is_host() ? 2048 : 8192;
  LinearSpec spec;
  spec.label = "ceiling";
  spec.weight.append(random_matrix(weights_for(compute), n, n, 1), 0, n);
  spec.compute = compute;
  spec.max_rows = n;
  const std::unique_ptr<Linear> linear = ops.make_linear(std::move(spec));
  const DType type = compute == Compute::f16 ? DType::f16 : activation_of(compute);
  const std::vector<float> values = TorchGenerator(1).randn(n * n);
  const Tensor x = upload_f32(ops.device(), values.data(), {n, n}, type, "benchmark");
  const Tensor y(ops.device(), type, {n, n}, "benchmark");
  Ceiling out;
  const double matmul = median_of(time_runs(ops, 5, [&] { ops.linear(*linear, x, y); }));
  out.matmul_tflops = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / matmul / 1e12;
  const int64_t bytes = ops.device().is_host() ? int64_t{256} << 20 : int64_t{4} << 30;
  const Tensor from(ops.device(), DType::f32, {bytes / 4}, "benchmark"),
      to(ops.device(), DType::f32, {bytes / 4}, "benchmark");
  ops.fill(from, 1.0f);
  const double copy = median_of(time_runs(ops, 5, [&] { ops.copy(from, to); }));
  out.copy_gb_per_s = 2.0 * static_cast<double>(bytes) / copy / 1e9;
  return out;
}

namespace {

// A denoiser with made-up weights and what one evaluation takes.
class StepBench {
 public:
  StepBench(Ops& ops, const ModelBench& o)
      : ops_(ops), options_(o), config_(release_dit_config(o.layers)), layout_(build_layout(text_to_video(o))) {
    ops.device().reset_peak();
    const double start = clock_seconds();
    DitOptions options;
    options.compute = o.compute;
    options.activation = activation_of(o.compute);
    dit_ = load_dit(ops, synthetic_dit(config_, 1, weights_for(o.compute)), options, control_);
    ops.sync();
    load_ = clock_seconds() - start;
    TorchGenerator generator(7);
    text_ = generator.randn(o.text_rows * config_.text_dim);
    const auto stream = [&](int64_t rows, int64_t width, bool random) {
      const std::vector<float> values = random ? generator.randn(rows * width) : std::vector<float>(rows * width);
      return upload_f32(ops.device(), values.data(), {rows, width}, DType::f32, "benchmark");
    };
    const auto video = static_cast<int64_t>(layout_.video_rows.size());
    const auto audio = static_cast<int64_t>(layout_.audio_rows.size());
    xv_ = stream(video, config_.video_row, true);
    xa_ = stream(audio, config_.audio_row, true);
    vv_ = stream(video, config_.video_row, false);
    va_ = stream(audio, config_.audio_row, false);
  }

  std::unique_ptr<DitSession> start(int64_t record_blocks) {
    DitRequest request;
    request.layout = &layout_;
    request.text = text_;
    request.video_times = diffusers_grid(5, 12).time;
    request.audio_times = diffusers_grid(5, 3).time;
    request.record_blocks = record_blocks;
    request.attention.math = options_.attention;
    return dit_->start(std::move(request), control_);
  }
  void evaluate(DitSession& session) {
    session.evaluate(1, xv_, xa_, vv_, va_);
    ops_.sync();
  }
  const DitConfig& config() const { return config_; }
  int64_t rows() const { return layout_.rows; }
  int64_t weight_bytes() const { return dit_->weight_bytes(); }
  double load_seconds() const { return load_; }
  std::vector<float> video() const { return download_f32(vv_); }
  bool finite() const { return all_finite(download_f32(vv_)) && all_finite(download_f32(va_)); }
  Json report(const std::vector<double>& seconds, const Ceiling& ceiling) const {
    const double tflop = step_tflop(config_, static_cast<double>(layout_.rows));
    Json row = report_of("step", ops_, seconds, tflop, ceiling.matmul_tflops);
    row.set("size", strf("%dx%dx%d", options_.width, options_.height, options_.frames)).set("rows", layout_.rows);
    row.set("layers", config_.layers).set("compute", precision_name(options_.compute));
    return row.set("attention", attention_text({.math = options_.attention}));
  }

 private:
  Ops& ops_;
  const ModelBench& options_;
  Control control_;
  DitConfig config_;
  PackedLayout layout_;
  std::unique_ptr<Dit> dit_;
  double load_ = 0;
  std::vector<float> text_;
  Tensor xv_, xa_, vv_, va_;
};

}  // namespace

Json bench_step(Ops& ops, const ModelBench& o, const Ceiling& ceiling) {
  StepBench step(ops, o);
  const std::unique_ptr<DitSession> session = step.start(o.record_blocks);
  step.evaluate(*session);
  const std::vector<float> first = step.video();
  const int64_t allocations = ops.device().allocations();
  const std::vector<double> seconds = time_runs(ops, o.repeats, [&] { step.evaluate(*session); });
  Json row = step.report(seconds, ceiling);
  row.set("load_s", step.load_seconds()).set("weight_bytes", step.weight_bytes());
  row.set("workspace_bytes", session->bytes()).set("finite", step.finite());
  row.set("repeatable", first == step.video()).set("allocations_in_loop", ops.device().allocations() - allocations);
  return row;
}

void bench_graphs(Ops& ops, const ModelBench& o, const Ceiling& ceiling, const std::function<void(const Json&)>& emit) {
  StepBench step(ops, o);
  const std::vector<int64_t> spans = {0, 1, 2, step.config().layers};
  std::vector<std::unique_ptr<DitSession>> sessions;
  std::vector<std::function<void()>> alternatives;
  std::vector<float> eager;
  for (const int64_t span : spans) {
    DitSession& session = *sessions.emplace_back(step.start(span));
    step.evaluate(session);  // what a recording needs
    step.evaluate(session);
    if (eager.empty()) eager = step.video();
    if (step.video() != eager) {
      fail(Code::data, "bench step: %lld blocks recorded at a time give other values than none",
           static_cast<long long>(span));
    }
    alternatives.push_back([&step, &session] { step.evaluate(session); });
  }
  const std::vector<std::vector<double>> seconds = time_in_turns(alternatives, o.repeats);
  const double reference = median_of(seconds[0]);
  for (size_t i = 0; i < spans.size(); ++i) {
    Json row = step.report(seconds[i], ceiling);
    row.set("recorded_blocks", spans[i]).set("finite", step.finite());
    emit(row.set("gain_over_eager", (reference - median_of(seconds[i])) / reference));
  }
}

// Every frame of a decode of release size, 0..1.
std::vector<float> decoded_frames(Ops& ops, const ModelBench& o, Compute compute) {
  VideoVaeOptions options;
  set_precision(options, compute);
  options.encoder = false;
  const std::unique_ptr<VideoVae> vae = load_video_vae(ops, synthetic_video_vae(o.layers, 2), options);
  const int frames = latent_frames(align_frames(o.frames)), height = o.height / 16, width = o.width / 16;
  const std::vector<float> latent = TorchGenerator(3).randn(int64_t{24} * frames * height * width);
  std::vector<float> out;
  vae->decode(latent.data(), frames, height, width, Control(), [&](const FrameRun& run) {
    out.insert(out.end(), run.rgb, run.rgb + int64_t{3} * run.frames * run.height * run.width);
  });
  return out;
}

// Of fp8 beside f16, in decibels below the range of a pixel.
double decode_psnr(Ops& ops, const ModelBench& o) {
  ModelBench small = o;
  small.width = std::min(o.width, 512);
  small.height = std::min(o.height, 288);
  small.frames = std::min(o.frames, 39);
  const std::vector<float> narrow = decoded_frames(ops, small, o.compute);
  const std::vector<float> wide = decoded_frames(ops, small, Compute::f16);
  double squares = 0;
  for (size_t i = 0; i < wide.size(); ++i) {
    const double d = static_cast<double>(narrow[i]) - static_cast<double>(wide[i]);
    squares += d * d;
  }
  return -10 * std::log10(squares / static_cast<double>(wide.size()));
}

Json bench_video_decode(Ops& ops, const ModelBench& o, const Ceiling& ceiling) {
  const Control control;
  VideoVaeOptions options;
  set_precision(options, o.compute);
  options.encoder = false;
  const double psnr = o.compute == Compute::packed ? decode_psnr(ops, o) : 0;
  ops.device().reset_peak();
  const std::unique_ptr<VideoVae> vae = load_video_vae(ops, synthetic_video_vae(o.layers, 2), options);
  const int frames = latent_frames(align_frames(o.frames)), height = o.height / 16, width = o.width / 16;
  const std::vector<float> latent = TorchGenerator(3).randn(int64_t{24} * frames * height * width);
  bool finite = true;
  int64_t emitted = 0;
  uint64_t sums[2] = {};
  int pass = 0;
  const auto decode = [&] {
    emitted = 0;
    uint64_t sum = 0;
    vae->decode(latent.data(), frames, height, width, control, [&](const FrameRun& run) {
      emitted += run.frames;
      const int64_t n = int64_t{3} * run.frames * run.height * run.width;
      for (int64_t i = 0; i < n; i += 997) {
        finite = finite && std::isfinite(run.rgb[i]);
        sum = sum * 31 + f32_bits(run.rgb[i]);
      }
    });
    sums[pass++ % 2] = sum;
  };
  const std::vector<double> seconds = time_runs(ops, std::max(o.repeats, 1), decode);
  // Spec vae 15.1: per tile-clip of S rows, 36 (2 S 2048 36864 + 4 S^2 2048).
  const TileAxis rows = tile_axis(o.height), columns = tile_axis(o.width);
  const double clips = (frames + 3) / 5 - 1.0;
  const double s = 7.0 * rows.lengths[0] / 16 * columns.lengths[0] / 16 + 5;
  const double layers = o.layers > 0 ? static_cast<double>(o.layers) : 36;
  const double per_tile =
      layers * (2 * s * 2048 * (6144 + 2048 + 16384 + 8192) + 4 * s * s * 2048) + 2 * s * 2048 * 3072;
  const double tiles = static_cast<double>(rows.starts.size() * columns.starts.size()) * clips;
  Json row = report_of("video_decode", ops, seconds, per_tile * tiles / 1e12, ceiling.matmul_tflops);
  row.set("size", strf("%dx%dx%d", o.width, o.height, o.frames))
      .set("frames", emitted)
      .set("compute", precision_name(o.compute));
  row.set("weight_bytes", vae->weight_bytes()).set("scratch_bytes", vae->decode_bytes(frames, height, width));
  row.set("finite", finite).set("repeatable", sums[0] == sums[1]);
  if (psnr > 0) row.set("psnr_of_f16_db", psnr);
  return row;
}

// Smooth pictures that move, so that no tile is like another; RGB.
std::vector<std::vector<uint8_t>> moving_frames(int frames, int height, int width) {
  std::vector<std::vector<uint8_t>> out;
  for (int i = 0; i < frames; ++i) {
    std::vector<uint8_t>& rgb = out.emplace_back();
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        for (int c = 0; c < 3; ++c) {
          const int phase = (x * (c + 1) + 2 * y + 6 * i) & 511;
          rgb.push_back(static_cast<uint8_t>(phase < 256 ? phase : 511 - phase));
        }
      }
    }
  }
  return out;
}

std::unique_ptr<VideoVae> bench_encoder(Ops& ops, Compute compute) {
  VideoVaeOptions options;
  set_precision(options, compute);
  options.decoder = false;
  return load_video_vae(ops, synthetic_video_vae(1, 2), options);
}

Json bench_video_encode(Ops& ops, const ModelBench& o, const Ceiling& ceiling) {
  const Control control;
  ops.device().reset_peak();
  const std::unique_ptr<VideoVae> vae = bench_encoder(ops, o.compute);
  const auto encode = [&](VideoVae& with, const std::vector<std::vector<uint8_t>>& frames, int height, int width) {
    const PixelSource source = [&](int first, int count, float* planar) {
      for (int i = 0; i < count; ++i) normalise_pixels(frames[first + i].data(), width, height, planar, count, i);
    };
    return with.encode_moments(source, static_cast<int>(frames.size()), height, width, control);
  };
  // A host takes minutes for a whole tile.
  constexpr int kTile = 256, kClip = 17;
  const int edge = ops.device().is_host() ? kTile / 4 : kTile;
  const std::vector<std::vector<uint8_t>> tile = moving_frames(ops.device().is_host() ? 5 : kClip, edge, edge);
  const std::vector<float> narrow = encode(*vae, tile, edge, edge);
  const std::vector<float> wide = encode(*bench_encoder(ops, Compute::f32), tile, edge, edge);
  const double error = compare_values(narrow, wide, {.rel_l2 = kEncodeLimit}).rel_l2;
  if (!(error <= kEncodeLimit) && o.compute == Compute::f16) {
    fail(Code::data, "video_encode in f16 is %.2e from f32, at most %.0e is allowed", error, kEncodeLimit);
  }
  const std::vector<std::vector<uint8_t>> clip = moving_frames(o.frames, o.height, o.width);
  std::vector<float> moments, first;
  const std::vector<double> seconds = time_runs(ops, std::max(o.repeats, 1), [&] {
    moments = encode(*vae, clip, o.height, o.width);
    if (first.empty()) first = moments;
  });
  // Spec vae 15.2: 8.95 TFLOP per tile of 256 x 256 and 17 frames.
  const TileAxis rows = tile_axis(o.height), columns = tile_axis(o.width);
  const double tiles = static_cast<double>(rows.starts.size() * columns.starts.size()) * rows.lengths[0] *
                       columns.lengths[0] / (kTile * kTile);
  const double clips = std::ceil(static_cast<double>(o.frames) / kClip);
  Json row = report_of("video_encode", ops, seconds, 8.95 * tiles * clips, ceiling.matmul_tflops);
  row.set("size", strf("%dx%dx%d", o.width, o.height, o.frames)).set("compute", precision_name(o.compute));
  row.set("weight_bytes", vae->weight_bytes()).set("scratch_bytes", vae->encode_bytes(o.frames, o.height, o.width));
  row.set("rel_l2", error).set("finite", all_finite(moments)).set("repeatable", first == moments);
  return row;
}

Json bench_audio_decode(Ops& ops, const ModelBench& o) {
  const Control control;
  AudioVaeOptions options;
  options.encoder = false;
  ops.device().reset_peak();
  const std::unique_ptr<AudioVae> vae = load_audio_vae(ops, synthetic_audio_vae(4), options);
  const int latents = audio_latents(align_frames(o.frames));
  const std::vector<float> rows = TorchGenerator(5).randn(int64_t{64} * latents);
  std::vector<float> samples, first;
  const std::vector<double> seconds = time_runs(ops, o.repeats, [&] {
    samples = vae->decode(rows.data(), latents, control);
    if (first.empty()) first = samples;
  });
  Json row = report_of("audio_decode", ops, seconds, 2 * 1.207e-3 * latents, 0);
  row.set("frames", o.frames).set("latents", latents).set("finite", all_finite(samples));
  row.set("repeatable", first == samples).set("scratch_bytes", vae->decode_bytes(latents));
  return row;
}

}  // namespace h3
