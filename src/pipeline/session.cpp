#include "pipeline/session.h"

#include <chrono>
#include <optional>

#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"
#include "model/vae/video_vae.h"
#include "ops/shadow.h"
#include "pipeline/engine.h"
#include "pipeline/prepare.h"
#include "pipeline/setup.h"

namespace h3 {
namespace {

// Every operation again on the oracle.
std::unique_ptr<Ops> shadowed(std::unique_ptr<Ops> ops, Context& context) {
  if (std::string(ops->name()) == "ref") {
    fail(Code::usage, "shadow: the device is ref, the oracle itself, choose another device");
  }
  return make_shadow(std::move(ops), make_backend("ref", context));
}

EngineOptions engine_options(const SessionOptions& options) {
  if (options.tap < 0 || options.tap > 64) {
    fail(Code::usage, "te_layers: %d is not allowed, give 1 to 64, for example 50", options.tap);
  }
  EngineOptions engine;
  engine.open = open_options(options);
  engine.tap = options.tap;
  engine.keep = options.keep;
  engine.prepared = options.prepared;
  engine.ram_limit = options.ram_limit;
  engine.budget = options.budget;
  engine.synthetic_layers = options.synthetic_layers;
  engine.synthetic_format = options.synthetic_format;
  engine.turbo_files = options.turbo_files;
  engine.lora_partial = options.lora_partial;
  return engine;
}

int checked_threads(int threads) {
  if (threads < 0 || threads > 1024) {
    fail(Code::usage, "threads: %d is not allowed, give 1 to 1024, for example 4", threads);
  }
  return threads;
}

}  // namespace

struct Session::State {
  State(const SessionOptions& options, Log& log)
      : pool(checked_threads(options.threads)),
        context{pool, log},
        ram_limit(options.ram_limit),
        budget(options.budget),
        start(std::chrono::steady_clock::now()),
        ops(make_backend(options.device, context)),
        device(ops->name()) {
    note("open device");
    if (options.shadow) ops = shadowed(std::move(ops), context);
    EngineOptions for_engine = engine_options(options);
    for_engine.device = device;
    engine.emplace(context, *ops, std::move(for_engine));
    note("open model files");
  }
  void note(const char* stage) {
    const auto now = std::chrono::steady_clock::now();
    opened.push_back({stage, std::chrono::duration<double>(now - start).count(), 1});
    start = now;
  }

  ThreadPool pool;
  Context context;
  int64_t ram_limit;
  MemoryBudget budget;
  std::chrono::steady_clock::time_point start;
  std::vector<StageTime> opened;
  std::unique_ptr<Ops> ops;
  std::string device;  // of the back end that does the work
  std::optional<Engine> engine;
};

Session::Session(const SessionOptions& options, Log& log) : state_(std::make_unique<State>(options, log)) {}
Session::~Session() = default;

const ModelFacts& Session::facts() const { return state_->engine->facts(); }
std::string Session::device() const { return state_->device; }
const std::vector<StageTime>& Session::opened() const { return state_->opened; }
Resolved Session::resolve(const Request& request) const { return h3::resolve(request, state_->engine->facts()); }

Placement Session::placement(const Resolved& resolved) { return state_->engine->placement(resolved); }

RunPlan Session::plan(const Resolved& resolved, bool fresh_rates) {
  PlanOptions options;
  options.ram_limit = state_->ram_limit;
  options.fresh_rates = fresh_rates;
  return plan_run(*state_->engine, resolved, options);
}

PlanMachine Session::machine(const Resolved& resolved) {
  PlanMachine machine;
  machine.device = state_->device;
  machine.program = anonymous_bytes();
  machine.ram = state_->ram_limit;
  const Device& device = state_->ops->device();
  if (!device.is_host()) machine.vram = usable_bytes(device, state_->budget);
  machine.rates = measured_rates(*state_->engine, resolved);
  return machine;
}

std::vector<ModelId> Session::model_ids() const { return state_->engine->recipe({}).model_ids; }

RunReport Session::run(const Resolved& resolved, const Control& control, const FrameSink& sink) {
  RunHooks hooks;
  if (sink.frames) hooks.on_frames = [&](const FrameRun& run) { sink.frames(run.rgb, run.first, run.frames); };
  if (sink.audio) {
    hooks.on_audio = [&](const std::vector<float>& samples, int64_t count) { sink.audio(samples.data(), count); };
  }
  hooks.on_preview = sink.preview;
  hooks.on_stage = sink.stage;
  const Dumps& dumps = resolved.request.dumps;
  hooks.sink.wants = [&](const std::string& stage) {
    for (const auto& [name, path] : dumps) {
      if (name == stage) return true;
    }
    return false;
  };
  hooks.sink.take = [&](const StageResult& result) {
    for (const auto& [name, path] : dumps) {
      if (name == result.stage) write_stage(path, result);
    }
  };
  return state_->engine->run(resolved, control, hooks);
}

RunReport Session::encode(const Request& request, const std::string& file, const Control& control) {
  RunHooks hooks;
  hooks.text_only = true;
  hooks.sink.wants = [](const std::string& stage) { return stage == "text"; };
  hooks.sink.take = [&](const StageResult& result) { write_stage(file, result); };
  return state_->engine->run(h3::resolve(request, text_facts(facts())), control, hooks);
}

Json Session::prepare(const Request& request, const std::vector<int64_t>& rows, const std::string& file,
                      const Control& control) {
  Engine& engine = *state_->engine;
  // Only the arithmetic counts: a model of references alone is prepared without any.
  const Resolved resolved = h3::resolve(request, text_facts(facts()));
  const PrepareInput input{
      *state_->ops, state_->ops->plan_maker(), engine.any_transformer(), resolved.compute, rows, {}};
  const PlanPackage package = prepare_plans(input, control);
  package.write(file);
  Json key = Json::object({}), report = package.report;
  for (const auto& [name, value] : package.key) key.set(name, value);
  return report.set("file", file).set("key", std::move(key));
}

struct Planner::State {
  explicit State(const SessionOptions& options)
      : pool(checked_threads(options.threads)),  // kernels keep scratch for each
        context{pool, log},
        ops(make_dry_ops(context, dry_rules("ref", context))) {
    EngineOptions for_engine = engine_options(options);
    for_engine.budget = {};  // what fits is judged by the machine's figures
    for_engine.ram_limit = 0;
    engine.emplace(context, *ops, std::move(for_engine));
  }

  Log log;
  ThreadPool pool;
  Context context;
  std::unique_ptr<Ops> ops;  // of no device: the engine must have some
  std::optional<Engine> engine;
};

Planner::Planner(const SessionOptions& options) : state_(std::make_unique<State>(options)) {}
Planner::~Planner() = default;

RunPlan Planner::plan(const Resolved& resolved, const PlanMachine& machine) {
  return plan_elsewhere(*state_->engine, resolved, machine);
}

}  // namespace h3
