#include <cmath>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "bench/ops.h"
#include "bench/timing.h"
#include "model/synthetic.h"
#include "pipeline/acceleration.h"
#include "pipeline/precision.h"
#include "sampling/rng.h"

namespace h3 {
namespace {

// The calls of one block (model/dit/session.cpp) on weights and activations of release size.
class BlockCalls {
 public:
  struct Call {
    const char* name;
    double tflop;
    std::function<void()> run;
  };

  BlockCalls(Ops& ops, int64_t rows, Compute compute, AttentionMath math)
      : ops_(ops),
        config_(release_dit_config(1)),
        rows_(rows),
        math_(math),
        type_(compute == Compute::f32 ? DType::f32 : DType::bf16),
        qkv_weight_(linear(config_.hidden, 3 * config_.inner(), compute)),
        out_weight_(linear(config_.inner(), config_.hidden, compute)),
        fc1_weight_(linear(config_.hidden, 2 * config_.ffn, compute)),
        fc2_weight_(linear(config_.ffn, config_.hidden, compute)),
        x_(noise({rows, config_.hidden}, type_)),
        h_(ops.device(), type_, {rows, config_.hidden}, "bench"),
        y_(ops.device(), type_, {rows, config_.hidden}, "bench"),
        qkv_(ops.device(), type_, {rows, 3 * config_.inner()}, "bench"),
        heads_(ops.device(), type_, {rows, config_.inner()}, "bench"),
        ffn_(ops.device(), type_, {rows, 2 * config_.ffn}, "bench"),
        table_(noise({6, config_.hidden}, type_)),
        norm_(noise({config_.hidden}, DType::f32)),
        head_norm_(noise({config_.head_dim}, DType::f32)),
        angle_(noise({rows, config_.head_dim / 2}, DType::f32)),
        ids_(ops.device(), DType::i32, {rows}, "bench") {
    const std::vector<int32_t> zeros(static_cast<size_t>(rows));
    ops.device().upload(zeros.data(), ids_);
    ops.reserve(rows, config_.inner());
  }

  std::vector<Call> calls() {
    const double s = static_cast<double>(rows_), hidden = static_cast<double>(config_.hidden),
                 inner = static_cast<double>(config_.inner()), ffn = static_cast<double>(config_.ffn);
    const auto part = [&](int64_t i) {
      return qkv_.view.slice(1, i * config_.inner(), config_.inner()).split(1, config_.head_dim);
    };
    const auto row = [&](int64_t i) { return table_.view.slice(0, i, 1); };
    const View q = part(0), k = part(1), v = part(2), ids = ids_;
    const Modulation mod{row(0), row(1), ids};
    const Gate gate{row(2), ids};
    const Ops::HeadNorm head_norm{true, head_norm_, config_.qk_norm_eps, NormRounding::once};
    const Rope rope{angle_, angle_, RopeRounding::per_op};
    AttentionArgs attention;
    attention.q = q;
    attention.k = k;
    attention.v = v;
    attention.out = heads_.view.split(1, config_.head_dim);
    attention.scale = 1 / std::sqrt(static_cast<float>(config_.head_dim));
    attention.math = math_;
    const View up = ffn_.view.slice(1, 0, config_.ffn), value = ffn_.view.slice(1, config_.ffn, config_.ffn);
    return {
        {"norm_modulate", 0, [=, this] { ops_.norm_modulate(x_, norm_, config_.norm_eps, mod, h_); }},
        {"qkv", 2e-12 * s * hidden * 3 * inner, [this] { ops_.linear(*qkv_weight_, h_, qkv_); }},
        {"head_norm_rope", 0,
         [=, this] {
           ops_.head_norm_rope(q, head_norm, rope);
           ops_.head_norm_rope(k, head_norm, rope);
         }},
        {"attention", 4e-12 * s * s * inner, [=, this] { ops_.attention(attention); }},
        {"out", 2e-12 * s * hidden * inner, [this] { ops_.linear(*out_weight_, heads_, y_); }},
        {"gate_norm", 0, [=, this] { ops_.gate_norm(x_, y_, gate, norm_, config_.norm_eps, mod, h_); }},
        {"gate_up", 4e-12 * s * hidden * ffn, [this] { ops_.linear(*fc1_weight_, h_, ffn_); }},
        {"swiglu", 0, [=, this] { ops_.swiglu(up, value, up); }},
        {"down", 2e-12 * s * hidden * ffn, [=, this] { ops_.linear(*fc2_weight_, up, y_); }},
        {"gated_add", 0, [=, this] { ops_.gated_add(x_, y_, gate); }},
    };
  }

  bool finite() {
    for (const float v : download_f32(x_)) {
      if (!std::isfinite(v)) return false;
    }
    return true;
  }

 private:
  std::unique_ptr<Linear> linear(int64_t in, int64_t out, Compute compute) {
    LinearSpec spec;
    spec.label = "bench";
    spec.weight.append(random_matrix(weights_for(compute), out, in, 3), 0, out);
    spec.compute = compute;
    spec.max_rows = rows_;
    return ops_.make_linear(std::move(spec));
  }
  Tensor noise(const std::vector<int64_t>& dims, DType type) {
    const int64_t count = std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
    const std::vector<float> values = TorchGenerator(5).randn(count);
    return upload_f32(ops_.device(), values.data(), dims, type, "bench");
  }

  Ops& ops_;
  DitConfig config_;
  int64_t rows_;
  AttentionMath math_;
  DType type_;
  std::unique_ptr<Linear> qkv_weight_, out_weight_, fc1_weight_, fc2_weight_;
  Tensor x_, h_, y_, qkv_, heads_, ffn_, table_, norm_, head_norm_, angle_, ids_;
};

Json measure(Ops& ops, int64_t rows, const ModelBench& options) {
  BlockCalls block(ops, rows, options.compute, options.attention);
  std::vector<std::function<void()>> alternatives;
  const std::vector<BlockCalls::Call> calls = block.calls();
  double tflop = 0, total = 0;
  for (const BlockCalls::Call& call : calls) {
    tflop += call.tflop;
    alternatives.push_back([&ops, &call] {
      call.run();
      ops.sync();
    });
  }
  const std::vector<std::vector<double>> seconds = time_in_turns(alternatives, options.repeats);
  if (!block.finite())
    fail(Code::data, "bench block: the result at %lld rows is not finite", static_cast<long long>(rows));
  for (const std::vector<double>& of_call : seconds) total += median_of(of_call);
  Json parts = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const double median = median_of(seconds[i]);
    Json part = Json::object({{"op", calls[i].name}, {"median_s", median}, {"share", median / total}});
    if (calls[i].tflop > 0) part.set("tflops", calls[i].tflop / median);
    parts.push(part);
  }
  Json row = Json::object({{"bench", "block"}, {"backend", ops.name()}, {"compute", precision_name(options.compute)}});
  return row.set("attention", attention_text({.math = options.attention}))
      .set("rows", rows)
      .set("median_s", total)
      .set("tflop", tflop)
      .set("tflops", tflop / total)
      .set("ops", parts);
}

}  // namespace

void bench_block(Ops& ops, const BenchOptions& options, const std::function<void(const Json&)>& emit) {
  const std::vector<int64_t> rows = options.rows.empty() ? std::vector<int64_t>{480, 1874} : options.rows;
  for (const int64_t count : rows) emit(measure(ops, count, options.model));
}

}  // namespace h3
