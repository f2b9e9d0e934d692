#include "bench/attention.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "backends/list.h"
#include "base/compare.h"
#include "base/context.h"
#include "bench/timing.h"
#include "ops/ops.h"
#include "sampling/rng.h"

namespace h3 {
namespace {

constexpr int64_t kHeads = 56, kDim = 128;
constexpr int64_t kChecked = 64;  // queries compared with f32, at most
constexpr double kTurn = 150e12;  // operations of a turn, before and while it is timed

struct Kernel {
  std::string name;
  Ops* ops;
  AttentionMath math;
};

// [rows, 3 * heads, d]; structured: channel 7 of q and k eight times as large, an offset in all keys, and channel 3 of
// v ten times as large.
Tensor random_heads(Ops& ops, int64_t rows, bool structured) {
  const int64_t row = 3 * kHeads * kDim, count = rows * row;
  std::vector<float> values = TorchGenerator(11).randn(std::min<int64_t>(count, 1 << 22));
  const std::vector<float> drawn = values, offset = TorchGenerator(12).randn(kHeads * kDim);
  values.resize(static_cast<size_t>(count));
  for (int64_t i = static_cast<int64_t>(drawn.size()); i < count; ++i) values[i] = drawn[i % (drawn.size() - 1)];
  for (int64_t i = 0; structured && i < count; ++i) {
    const int64_t part = i % row / (kHeads * kDim), channel = i % kDim;
    if (part < 2 && channel == 7) values[i] *= 8;
    if (part == 1) values[i] += 3 * offset[i % (kHeads * kDim)];
    if (part == 2 && channel == 3) values[i] *= 10;
  }
  return upload_f32(ops.device(), values.data(), {rows, 3 * kHeads, kDim}, DType::bf16, "benchmark");
}

AttentionArgs args_of(const View& heads, const View& out, AttentionMath math) {
  AttentionArgs args;
  args.q = heads.slice(1, 0, kHeads);
  args.k = heads.slice(1, kHeads, kHeads);
  args.v = heads.slice(1, 2 * kHeads, kHeads);
  args.out = out;
  args.scale = 1 / std::sqrt(static_cast<float>(kDim));
  args.math = math;
  return args;
}

// The first queries in f32.
std::vector<float> exact_rows(Ops& ops, const View& heads) {
  const Tensor wide(ops.device(), DType::f32, {heads.dim[0], 3 * kHeads, kDim}, "benchmark");
  const int64_t checked = std::min(kChecked, heads.dim[0]);
  const Tensor out(ops.device(), DType::f32, {checked, kHeads, kDim}, "benchmark");
  ops.copy(heads, wide);
  AttentionArgs args = args_of(wide, out, AttentionMath::exact);
  args.q = args.q.slice(0, 0, checked);
  ops.attention(args);
  ops.sync();
  return download_f32(out);
}

// Of every kernel.
std::vector<double> errors_of(const std::vector<Kernel>& kernels, Ops& base, int64_t rows, bool structured) {
  const Tensor heads = random_heads(base, rows, structured);
  const Tensor out(base.device(), DType::bf16, {rows, kHeads, kDim}, "benchmark");
  const std::vector<float> want = exact_rows(base, heads);
  std::vector<double> errors;
  for (const Kernel& kernel : kernels) {
    kernel.ops->attention(args_of(heads, out, kernel.math));
    kernel.ops->sync();
    const std::vector<float> got = download_f32(out.view.slice(0, 0, std::min(kChecked, rows)));
    errors.push_back(compare_values(got, want, {.rel_l2 = 1}).rel_l2);
  }
  return errors;
}

void measure(const std::vector<Kernel>& kernels, Ops& base, int64_t rows, int repeats,
             const std::function<void(const Json&)>& emit) {
  const double flop = 4.0 * static_cast<double>(rows * rows * kHeads * kDim);
  const int calls = static_cast<int>(std::clamp(kTurn / flop, 2.0, 200.0));
  std::vector<std::vector<double>> seconds(kernels.size());
  {
    const Tensor heads = random_heads(base, rows, false);
    const Tensor out(base.device(), DType::bf16, {rows, kHeads, kDim}, "benchmark");
    base.sync();
    for (int turn = 0; turn < repeats; ++turn) {
      for (size_t i = 0; i < kernels.size(); ++i) {
        const auto run = [&] {
          for (int call = 0; call < calls; ++call) {
            kernels[i].ops->attention(args_of(heads, out, kernels[i].math));
          }
          kernels[i].ops->sync();
        };
        run();
        const double start = clock_seconds();
        run();
        seconds[i].push_back((clock_seconds() - start) / calls);
      }
    }
  }
  const std::vector<double> random = errors_of(kernels, base, rows, false);
  const std::vector<double> structured = errors_of(kernels, base, rows, true);
  const double first = median_of(seconds[0]);
  for (size_t i = 0; i < kernels.size(); ++i) {
    const double median = median_of(seconds[i]);
    emit(Json::object({{"bench", "attention"},
                       {"rows", rows},
                       {"kernel", kernels[i].name},
                       {"ms", median * 1e3},
                       {"ms_least", *std::min_element(seconds[i].begin(), seconds[i].end()) * 1e3},
                       {"tflops", flop / median / 1e12},
                       {"times_as_fast", first / median},
                       {"error_random", random[i]},
                       {"error_structured", structured[i]}}));
  }
}

}  // namespace

void run_attention_bench(const std::string& device, int threads, Log& log, const AttentionBench& options,
                         const std::function<void(const Json&)>& emit) {
  ThreadPool pool(threads);
  Context context{pool, log};
  const std::unique_ptr<Ops> base = make_backend(device, context);
  std::vector<std::unique_ptr<Ops>> forced;
  std::vector<Kernel> kernels;
  if (base->device().is_host()) {
    kernels.push_back({"exact", base.get(), AttentionMath::exact});
  } else {
    for (const char* kernel : {"library", "own"}) {
      forced.push_back(make_backend(std::string(base->name()) + ",attention=" + kernel, context));
      kernels.push_back({kernel, forced.back().get(), AttentionMath::exact});
    }
  }
  const std::string refused = base->refuses_eight_bit(kDim);
  if (refused.empty())
    kernels.push_back({"8bit", base.get(), AttentionMath::eight_bit});
  else
    log.write(LogLevel::warn, "8bit is left out: %s", refused.c_str());
  for (const int64_t rows : options.rows) {
    base->reserve(rows, kHeads * kDim);
    measure(kernels, *base, rows, options.repeats, emit);
  }
}

}  // namespace h3
