#include "bench/ops.h"

#include <algorithm>
#include <cmath>

#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"
#include "bench/peer_onednn.h"
#include "bench/timing.h"
#include "codec/float8_row.h"
#include "codec/nvfp4_row.h"
#include "model/synthetic.h"
#include "sampling/rng.h"

namespace h3 {
namespace {

struct Shape {
  const char* name;
  int64_t in, out;
};

std::vector<Shape> block_shapes() {
  const DitConfig c = release_dit_config(1);
  return {{"qkv", c.hidden, 3 * c.inner()},
          {"out", c.inner(), c.hidden},
          {"gate_up", c.hidden, 2 * c.ffn},
          {"down", c.ffn, c.hidden}};
}

struct Mode {
  Compute compute;
  Format format;
  const char* name;
};

constexpr Mode kModes[] = {{Compute::bf16, Format::noise, "bf16"},
                           {Compute::int8, Format::noise, "int8"},
                           {Compute::int8, Format::q4tp, "int8 of q4tp"},
                           {Compute::packed, Format::f8_e4m3, "e4m3 as stored"}};

LinearSpec spec_of(const StoredMatrix& stored, Compute compute, int64_t rows) {
  LinearSpec spec;
  spec.label = "bench";
  spec.weight.append(stored, 0, stored.rows);
  spec.compute = compute;
  spec.max_rows = rows;
  return spec;
}

double relative_l2(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    difference += d * d;
    norm += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  return std::sqrt(difference / norm);
}

// Results are bf16, which alone leaves 1.7e-3; a wrong element in a thousand shows as 3e-2.
constexpr double kAllowed = 5e-3;

void require(double error, const std::string& what) {
  if (!(error <= kAllowed)) {
    fail(Code::data, "%s: relative L2 %.2e from the oracle, %.0e is allowed", what.c_str(), error, kAllowed);
  }
}

// Against the oracle on a sample of rows and columns that touches the first, the last and some in between.
double linear_error(Ops& ops, const StoredMatrix& stored, const Linear& fast, const View& x, const View& y) {
  const int64_t rows = x.dim[0], out = stored.rows;
  std::vector<int64_t> columns;
  for (int64_t i = 0; i < 24; ++i) columns.push_back(i * (out - 1) / 23);
  const std::unique_ptr<Ops> ref = make_backend("ref", ops.context());
  LinearSpec spec = spec_of(stored, fast.compute, 1);
  spec.weight = {};
  for (const int64_t column : columns) spec.weight.append(stored, column, 1);
  const std::unique_ptr<Linear> linear = ref->make_linear(std::move(spec));
  std::vector<float> got, want;
  for (const int64_t row : {int64_t{0}, rows / 3, rows / 2, rows - 1}) {
    const std::vector<float> input = download_f32(x.slice(0, row, 1)), all = download_f32(y.slice(0, row, 1));
    std::vector<double> operands(input.begin(), input.end());
    if (fast.float8_activations) float8_row_round(operands.data(), stored.cols);
    if (fast.nvfp4_activations) nvfp4_row_round(operands.data(), stored.cols);
    const Tensor rx(ref->device(), DType::f64, {1, stored.cols}, "bench");
    ref->device().upload(operands.data(), rx);
    const Tensor ry(ref->device(), y.type, {1, static_cast<int64_t>(columns.size())}, "bench");
    ref->linear(*linear, rx, ry);
    for (const float v : download_f32(ry)) want.push_back(v);
    for (const int64_t column : columns) got.push_back(all[static_cast<size_t>(column)]);
  }
  return relative_l2(got, want);
}

// noise_decode hashes the element's place, so that gathered rows would differ: those weights are written out first.
StoredMatrix weights_of(Format format, int64_t rows, int64_t cols, Context& context) {
  StoredMatrix matrix = random_matrix(format, rows, cols, 11);
  if (format != Format::noise) return matrix;
  const auto values = std::make_shared<std::vector<uint16_t>>(static_cast<size_t>(rows * cols));
  context.pool.parallel(rows, [&](int64_t r) {
    std::vector<float> row(static_cast<size_t>(cols));
    row_of(Format::noise).decode_row(matrix, r, row.data());
    for (int64_t i = 0; i < cols; ++i)
      (*values)[static_cast<size_t>(r * cols + i)] = f32_to_bf16(row[static_cast<size_t>(i)]);
  });
  matrix.format = Format::bf16;
  matrix.data = std::as_bytes(std::span(*values));
  matrix.keep_alive = values;
  return matrix;
}

// Rounds in which every alternative and the peak take turns: a fraction compares neighbours in time.
struct Turns {
  std::vector<std::vector<double>> seconds;  // of the alternatives
  std::vector<double> peak;                  // operations a second
};

Turns take_turns(Ops& ops, const std::vector<std::function<void()>>& alternatives, int rounds, bool integer) {
  Turns turns;
  turns.seconds.resize(alternatives.size());
  for (const std::function<void()>& run : alternatives) run();
  const bool host = ops.device().is_host();
  const auto peak = [&] { return host ? host_matrix_peak(ops.context().pool, integer, 0.01) : 0; };
  for (int round = 0; round < rounds; ++round) {
    const double before = peak();
    for (size_t i = 0; i < alternatives.size(); ++i) {
      const double start = clock_seconds();
      alternatives[i]();
      turns.seconds[i].push_back(clock_seconds() - start);
    }
    turns.peak.push_back((before + peak()) / 2);
  }
  return turns;
}

void set_speed(Json& row, const Turns& turns, double tflop) {
  const std::vector<double>& seconds = turns.seconds[0];
  row.set("median_s", median_of(seconds)).set("tflops", tflop / median_of(seconds));
  if (turns.peak.front() <= 0) return;
  std::vector<double> fractions;
  for (size_t i = 0; i < seconds.size(); ++i) fractions.push_back(tflop * 1e12 / seconds[i] / turns.peak[i]);
  row.set("peak_tflops", median_of(turns.peak) / 1e12).set("fraction_of_peak", median_of(fractions));
  row.set("best_fraction", *std::max_element(fractions.begin(), fractions.end()));
}

Json bench_linear(Ops& ops, const Mode& mode, const Shape& shape, int64_t rows, int rounds) {
  const StoredMatrix stored = weights_of(mode.format, shape.out, shape.in, ops.context());
  const std::unique_ptr<Linear> linear = ops.make_linear(spec_of(stored, mode.compute, rows));
  const std::vector<float> values = TorchGenerator(1).randn(rows * shape.in);
  const Tensor x = upload_f32(ops.device(), values.data(), {rows, shape.in}, DType::bf16, "bench");
  const Tensor y(ops.device(), DType::bf16, {rows, shape.out}, "bench");
  ops.linear(*linear, x, y);
  ops.sync();
  const double error = linear_error(ops, stored, *linear, x, y);
  require(error, std::string("linear ") + shape.name + " in " + mode.name);
  const bool integer = mode.compute == Compute::int8;
  std::vector<std::function<void()>> alternatives{[&] {
    ops.linear(*linear, x, y);
    ops.sync();
  }};
  std::unique_ptr<PeerMatmul> peer;
  if (ops.device().is_host()) peer = make_onednn_matmul(rows, shape.in, shape.out, integer);
  if (peer) alternatives.push_back([&] { peer->run(); });
  const Turns turns = take_turns(ops, alternatives, rounds, integer);
  const double tflop =
      2e-12 * static_cast<double>(rows) * static_cast<double>(shape.in) * static_cast<double>(shape.out);
  Json row = Json::object({{"bench", "ops"}, {"op", "linear"}, {"shape", shape.name}});
  row.set("compute", mode.name).set("rows", rows).set("in", shape.in).set("out", shape.out);
  row.set("kernel", linear->kernel).set("bytes", linear->bytes).set("error", error);
  set_speed(row, turns, tflop);
  if (peer) {
    std::vector<double> gains;
    for (size_t i = 0; i < turns.seconds[0].size(); ++i) gains.push_back(turns.seconds[1][i] / turns.seconds[0][i]);
    row.set("onednn_s", median_of(turns.seconds[1])).set("times_onednn", median_of(gains));
  }
  return row;
}

double attention_error(Ops& ops, const AttentionArgs& args) {
  const std::unique_ptr<Ops> ref = make_backend("ref", ops.context());
  const int64_t rows = args.q.dim[0], d = args.q.dim[2];
  std::vector<float> got, want;
  for (const int64_t head : {int64_t{0}, args.q.dim[1] - 1}) {
    const auto one = [&](const View& view, int64_t first, int64_t count) {
      const std::vector<float> values = download_f32(view.slice(1, head, 1).slice(0, first, count));
      return upload_f32(ref->device(), values.data(), {count, 1, d}, view.type, "bench");
    };
    for (const int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
      const Tensor q = one(args.q, row, 1), k = one(args.k, 0, rows), v = one(args.v, 0, rows);
      const Tensor out(ref->device(), args.out.type, {1, 1, d}, "bench");
      AttentionArgs small;
      small.q = q;
      small.k = k;
      small.v = v;
      small.out = out;
      small.scale = args.scale;
      ref->attention(small);
      for (const float value : download_f32(out)) want.push_back(value);
      for (const float value : download_f32(args.out.slice(1, head, 1).slice(0, row, 1))) got.push_back(value);
    }
  }
  return relative_l2(got, want);
}

Json bench_attention(Ops& ops, int64_t rows, int rounds) {
  const DitConfig c = release_dit_config(1);
  const int64_t inner = c.inner();
  const std::vector<float> values = TorchGenerator(2).randn(rows * 3 * inner);
  const Tensor qkv = upload_f32(ops.device(), values.data(), {rows, 3 * inner}, DType::bf16, "bench");
  const Tensor out(ops.device(), DType::bf16, {rows, inner}, "bench");
  AttentionArgs args;
  args.q = qkv.view.slice(1, 0, inner).split(1, c.head_dim);
  args.k = qkv.view.slice(1, inner, inner).split(1, c.head_dim);
  args.v = qkv.view.slice(1, 2 * inner, inner).split(1, c.head_dim);
  args.out = out.view.split(1, c.head_dim);
  args.scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
  ops.attention(args);
  ops.sync();
  const double error = attention_error(ops, args);
  require(error, "attention");
  const auto run = [&] {
    ops.attention(args);
    ops.sync();
  };
  const Turns turns = take_turns(ops, {run}, rounds, false);
  Json row = Json::object({{"bench", "ops"}, {"op", "attention"}, {"shape", "self"}, {"compute", "bf16"}});
  row.set("rows", rows).set("heads", inner / c.head_dim).set("head_dim", c.head_dim).set("error", error);
  set_speed(row, turns, 4e-12 * static_cast<double>(rows) * static_cast<double>(rows) * static_cast<double>(inner));
  return row;
}

}  // namespace

void bench_ops(Ops& ops, const BenchOptions& options, const std::function<void(const Json&)>& emit) {
  const std::vector<int64_t> rows = options.rows.empty() ? std::vector<int64_t>{1874} : options.rows;
  for (const int64_t count : rows) {
    ops.reserve(count, release_dit_config(1).inner());
    for (const Mode& mode : kModes) {
      for (const Shape& shape : block_shapes()) emit(bench_linear(ops, mode, shape, count, options.model.repeats));
    }
    emit(bench_attention(ops, count, options.model.repeats));
  }
}

}  // namespace h3
