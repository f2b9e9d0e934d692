// h3 bench ops|block|step|vae|decode|audio|e2e.
#include "bench/bench.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "apps/cli/command.h"
#include "apps/cli/run_flags.h"
#include "apps/cli/terminal.h"
#include "base/error.h"
#include "base/nearest.h"
#include "base/text.h"
#include "pipeline/acceleration.h"
#include "pipeline/precision.h"

namespace h3 {
namespace {

struct KindRow {
  const char* name;
  BenchKind kind;
};

constexpr KindRow kKinds[] = {{"ops", BenchKind::ops}, {"block", BenchKind::block},   {"step", BenchKind::step},
                              {"vae", BenchKind::vae}, {"decode", BenchKind::decode}, {"audio", BenchKind::audio},
                              {"e2e", BenchKind::e2e}};

// Commands of their own, with other flags.
constexpr const char* kOthers[] = {"attention", "eval", "formats", "start", "turbo"};

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const KindRow& row : kKinds) names.emplace_back(row.name);
  names.insert(names.end(), std::begin(kOthers), std::end(kOthers));
  return names;
}

BenchKind kind_of(const Arguments& arguments) {
  if (arguments.positional.size() != 1) {
    fail(Code::usage, "bench takes one of %s: h3 bench block", joined(kind_names(), ", ").c_str());
  }
  const std::string& word = arguments.positional[0];
  for (const KindRow& row : kKinds) {
    if (word == row.name) return row.kind;
  }
  for (const char* const name : kOthers) {
    if (word == name) fail(Code::usage, "bench: write %s right after bench: h3 bench %s", name, name);
  }
  const std::vector<std::string> names = kind_names();
  fail(Code::usage, "bench: \"%s\" is not known, give one of %s%s", word.c_str(), joined(names, ", ").c_str(),
       suggestion(word, names).c_str());
}

int checked(const Arguments& arguments, const char* name, int fallback, int low, int high) {
  const int value = arguments.whole(name, fallback);
  if (value < low || value > high) {
    fail(Code::usage, "--%s: %d is not allowed, give %d to %d, for example %d", name, value, low, high, fallback);
  }
  return value;
}

}  // namespace

int run_bench_models(Arguments& arguments) {
  Terminal terminal(level_of(arguments));
  BenchOptions options;
  options.kind = kind_of(arguments);
  if (arguments.text("weights", "random") != "random") {
    fail(Code::usage, "--weights: bench measures with random ones; h3 generate takes %s",
         arguments.text("weights").c_str());
  }
  options.device = arguments.text("device", "auto");
  options.threads = checked(arguments, "threads", 0, 0, 1024);
  const Request request = arguments.request();
  ModelBench& model = options.model;
  const auto side = [](int value) { return std::min(std::max((value + 16) / 32 * 32, kMinSide), kMaxSide); };
  model.width = side(request.width.value_or(512));
  model.height = side(request.height.value_or(288));
  model.frames = std::min(std::max(request.frames.value_or(39), 1), kMaxFrames);
  model.layers = checked(arguments, "layers", 2, 1, 50);
  model.compute = parse_precision("--precision", arguments.text("precision", "bf16"),
                                  {Compute::f32, Compute::bf16, Compute::f16, Compute::int8, Compute::packed});
  model.repeats = checked(arguments, "repeats", 3, 1, 1000);
  if (arguments.has("rows")) options.rows = row_counts(arguments.text("rows"));
  options.shadow = arguments.on("shadow");
  const std::string graph = arguments.text("graph", "off");
  if (graph != "off" && graph != "on" && graph != "both") {
    fail(Code::usage, "--graph: \"%s\" is not known, give off, on or both", graph.c_str());
  }
  if (graph != "off" && (options.kind != BenchKind::step || options.shadow)) {
    fail(Code::usage, "--graph: %s is for h3 bench step without --shadow, leave it out", graph.c_str());
  }
  if (arguments.has("attention")) {
    if (options.kind != BenchKind::step && options.kind != BenchKind::block && options.kind != BenchKind::e2e) {
      fail(Code::usage, "--attention: is for h3 bench step, block and e2e, leave it out");
    }
    const AttentionOptions attention = parse_attention(request.attention);
    if (attention.sparse) {
      fail(Code::usage, "--attention: sparse is timed by h3 bench turbo, give dense or 8bit");
    }
    model.attention = attention.math;
  }
  if (options.kind == BenchKind::audio && arguments.has("precision")) {
    fail(Code::usage, "--precision: sound is decoded in f32 alone, leave it out");
  }
  if (graph == "on") model.record_blocks = 1;
  options.graphs = graph == "both";
  const bool json = arguments.on("json");
  run_bench(options, terminal.log(), [&](const Json& row) {
    std::printf("%s\n", json ? row.dump().c_str() : bench_line(row).c_str());
    std::fflush(stdout);
  });
  return 0;
}

}  // namespace h3
