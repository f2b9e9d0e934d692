#include "pipeline/placement.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <span>

#include "backends/list.h"
#include "backends/ref/ref_ops.h"
#include "base/context.h"
#include "base/error.h"
#include "pipeline/engine.h"
#include "store/tensor_source.h"
#include "tests/support/packed_matrix.h"

namespace h3 {
namespace {

// The embedded demo model on the smallest clip.
class PlacementTest : public ::testing::Test {
 protected:
  struct Clip {
    std::vector<float> frames, samples;
    bool operator==(const Clip&) const = default;
  };

  static Request smallest() {
    Request request;
    request.prompt = "a red ball";
    request.width = request.height = 32;
    request.frames = 5;
    request.steps = 2;
    return request;
  }
  Resolved request(const Engine& engine, const std::string& output = "") {
    Request request = smallest();
    request.output = output;
    return resolve(request, engine.facts());
  }
  Clip run(Engine& engine, const Resolved& resolved, RunReport* report = nullptr) {
    Clip clip;
    RunHooks hooks;
    hooks.on_audio = [&](const std::vector<float>& samples, int64_t) { clip.samples = samples; };
    hooks.on_frames = [&](const FrameRun& run) {
      clip.frames.insert(clip.frames.end(), run.rgb, run.rgb + int64_t{3} * run.frames * run.height * run.width);
    };
    RunReport done = engine.run(resolved, Control(), hooks);
    if (report != nullptr) *report = std::move(done);
    return clip;
  }
  std::unique_ptr<Engine> engine_with(MemoryBudget budget, bool keep = false) {
    EngineOptions options;
    options.budget = budget;
    options.keep = keep;
    return std::make_unique<Engine>(context_, *ops_, options);
  }

  static constexpr int64_t kRank = 64, kInner = 512, kHidden = 256;         // of an adapter of the demo model
  static std::string write_adapter(const std::string& name, float value) {  // equal files are one adapter
    const std::string path = ::testing::TempDir() + name;
    const std::vector<float> values(static_cast<size_t>(kRank * kInner), value);
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
    std::vector<TensorToWrite> tensors;
    for (const char* module : {"blocks.0.attn.out_proj", "blocks.5.attn.out_proj"}) {
      tensors.push_back({std::string(module) + ".lora_A.weight", Format::f32, {kRank, kInner}, bytes});
      tensors.push_back(
          {std::string(module) + ".lora_B.weight", Format::f32, {kHidden, kRank}, bytes.first(4 * kHidden * kRank)});
    }
    write_safetensors(path, tensors, {});
    return path;
  }

  ThreadPool pool_{2};
  Log log_;
  Context context_{pool_, log_};
  std::unique_ptr<Ops> ops_ = make_backend("cpu", context_);
};

TEST_F(PlacementTest, EveryPlanGivesTheSameBytes) {
  RunReport report;
  const std::unique_ptr<Engine> free = engine_with({});
  const Clip expected = run(*free, request(*free), &report);
  EXPECT_TRUE(report.placement.phases.empty());
  ASSERT_FALSE(expected.frames.empty());
  int64_t last = INT64_MAX;
  for (const PlanMode mode : {PlanMode::resident, PlanMode::offload, PlanMode::stream}) {
    const std::unique_ptr<Engine> engine = engine_with({.mode = mode});
    EXPECT_EQ(run(*engine, request(*engine), &report), expected) << name_of(mode);
    EXPECT_EQ(report.placement.mode, mode);
    EXPECT_LT(report.placement.peak, last) << name_of(mode);
    last = report.placement.peak;
  }
  // A cap between the last two takes the turns that fit it.
  const std::unique_ptr<Engine> capped = engine_with({.ram = last + last / 8});
  EXPECT_EQ(run(*capped, request(*capped), &report), expected);
  EXPECT_LE(report.placement.peak, last + last / 8);
  EXPECT_LE(ops_->device().peak_bytes(), last + last / 8);
}

TEST_F(PlacementTest, WhatDoesNotFitIsRefusedBeforeItStarts) {
  const std::unique_ptr<Engine> engine = engine_with({.ram = int64_t{1} << 20});
  const int64_t before = ops_->device().allocations();
  try {
    run(*engine, request(*engine));
    FAIL() << "a run in 1 MiB";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::memory);
    const std::string text = error.what();
    for (const char* part : {"the plan stream needs", "0.00 GiB are available", "denoise", "decode video"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  EXPECT_EQ(ops_->device().allocations(), before);
}

TEST_F(PlacementTest, KeptPartsGoWhereTheyDoNotFitTogether) {
  const std::unique_ptr<Engine> roomy = engine_with({.ram = int64_t{64} << 30}, true);
  const Placement together = roomy->placement(request(*roomy));
  EXPECT_TRUE(together.keep);
  EXPECT_EQ(together.mode, PlanMode::resident);
  const std::unique_ptr<Engine> tight = engine_with({.ram = together.peak - 1}, true);
  const Placement alone = tight->placement(request(*tight));
  EXPECT_FALSE(alone.keep);
  EXPECT_LT(alone.peak, together.peak);
}

// The plan of a request knows its own adapters alone: those of earlier requests stay where there is room for them.
TEST_F(PlacementTest, AdaptersOfEarlierRequestsMakeRoom) {
  const std::string paths[] = {write_adapter("h3_first_adapter.safetensors", 0.001f),
                               write_adapter("h3_second_adapter.safetensors", 0.002f)};
  const auto with = [&](const Engine& engine, const std::string& path) {
    Request asked = smallest();
    asked.steps = 1;
    asked.audio = false;
    asked.adapters = {{path, 1}};
    return resolve(asked, engine.facts());
  };
  const auto grown = [&](MemoryBudget budget) {  // by the second request
    const std::unique_ptr<Engine> engine = engine_with(budget, true);
    run(*engine, with(*engine, paths[0]));
    const int64_t before = ops_->device().allocated_bytes();
    run(*engine, with(*engine, paths[1]));
    return ops_->device().allocated_bytes() - before;
  };
  const Placement plan = [&] {
    const std::unique_ptr<Engine> engine = engine_with({.ram = int64_t{64} << 30}, true);
    return engine->placement(with(*engine, paths[0]));
  }();
  ASSERT_TRUE(plan.keep);
  EXPECT_GE(grown({.ram = int64_t{64} << 30}), plan.adapters);
  EXPECT_EQ(grown({.ram = plan.peak}), 0);
  for (const std::string& path : paths) std::filesystem::remove(path);
}

TEST_F(PlacementTest, AnAdapterThatFailedToLoadIsNotHeld) {
  const std::string paths[] = {write_adapter("h3_stopped_adapter.safetensors", 0.001f),
                               write_adapter("h3_later_adapter.safetensors", 0.002f)};
  const std::unique_ptr<Engine> engine = engine_with({.ram = int64_t{64} << 30}, true);
  const auto with = [&](const std::string& path) {
    Request asked = smallest();
    asked.steps = 1;
    asked.audio = false;
    asked.adapters = {{path, 1}};
    return resolve(asked, engine->facts());
  };
  Control control;
  control.on_progress = [&](const Progress& progress) {
    if (progress.stage == std::string("load") && progress.total == 2) control.request_stop();  // the adapter's sites
  };
  EXPECT_THROW(engine->run(with(paths[0]), control), Error);
  EXPECT_TRUE(control.stop_requested());
  run(*engine, with(paths[1]));
  run(*engine, with(paths[0]));
  for (const std::string& path : paths) std::filesystem::remove(path);
}

// What an attention call takes beside its operands is part of the plan, also behind one of the same size without it.
TEST_F(PlacementTest, TheKindOfAttentionIsPlanned) {
  static constexpr int64_t kScratch = int64_t{1} << 30;
  struct Scratch final : RefOps {
    using RefOps::RefOps;
    int64_t sparse_attention_bytes(int64_t, int64_t, int64_t, DType) const override { return kScratch; }
  };
  ops_ = std::make_unique<Scratch>(context_);
  const std::unique_ptr<Engine> engine = engine_with({.mode = PlanMode::resident});
  const auto peak = [&](const char* attention) {
    Request asked = smallest();
    asked.attention = attention;
    return engine->placement(resolve(asked, engine->facts())).peak;
  };
  const int64_t dense = peak("dense");
  EXPECT_GE(peak("sparse:1,minimum=0"), dense + kScratch / 2);
  EXPECT_EQ(peak("dense"), dense);
}

// The rows of the text are those that were counted, also where another prompt of its length was planned before.
TEST_F(PlacementTest, EveryTokenIsPlanned) {
  const std::unique_ptr<Engine> engine = engine_with({.mode = PlanMode::resident});
  Resolved few = request(*engine), many = few;
  ASSERT_GT(few.prompt_tokens, 0);
  many.prompt_tokens = few.prompt_tokens + 200;
  const auto denoise = [&](const Resolved& resolved) {
    for (const PlacementPhase& phase : engine->placement(resolved).phases) {
      if (phase.name == "denoise") return phase.bytes;
    }
    return int64_t{0};
  };
  const int64_t small = denoise(few);
  EXPECT_GT(denoise(many), small + 200 * 256 * 4);  // hidden rows in f32 at least
  few.prompt_tokens = 1;
  EXPECT_LT(denoise(few), small);
  // Saved embeddings have rows of their own.
  const std::string path = ::testing::TempDir() + "h3_planned_embeds.safetensors";
  constexpr int64_t kRows = 300, kWidth = 4;
  const std::vector<float> values(kRows * kWidth);
  write_safetensors(path, {{"prompt_embeds", Format::f32, {kRows, kWidth}, std::as_bytes(std::span(values))}}, {});
  few.request.prompt_embeds = path;
  EXPECT_GT(denoise(few), small);
  std::remove(path.c_str());
}

// Reports and estimates know the cap, on the host and on a card.
TEST(UsableBytes, CapsCount) {
  Log log;
  ThreadPool pool(1);
  Context context{pool, log};
  const std::unique_ptr<Ops> host = make_backend("cpu", context);
  EXPECT_EQ(usable_bytes(host->device(), {.vram = int64_t{2} << 30, .ram = int64_t{3} << 30}), int64_t{3} << 30);
  const std::unique_ptr<DryOps> card = make_dry_ops(context, dry_rules("cuda:0", context));
  ASSERT_FALSE(card->device().is_host());
  const MemoryBudget budget{.vram = int64_t{2} << 30, .ram = int64_t{3} << 30};
  EXPECT_EQ(usable_bytes(card->device(), budget), cap_of_allocations(budget));
  EXPECT_EQ(usable_bytes(card->device(), {}), card->device().free_bytes() + card->device().allocated_bytes());
}

// A card holds weights narrower than its operands as they are stored, and a plan without the card knows it.
TEST(CardRules, PackedWeightsCountAsStored) {
  Log log;
  ThreadPool pool(1);
  Context context{pool, log};
  const DryRules rules = dry_rules("cuda:0", context);
  const StoredMatrix stored = PackedMaker(1).make(Format::q4tp, 64, 256);
  const auto bytes = [&](Compute compute) {
    LinearSpec spec;
    spec.weight.append(stored, 0, stored.rows);
    spec.compute = compute;
    return rules.linear(spec).bytes;
  };
  for (const Compute compute : {Compute::packed, Compute::bf16, Compute::f16}) {
    EXPECT_EQ(bytes(compute), stored.bytes()) << static_cast<int>(compute);
  }
  EXPECT_EQ(bytes(Compute::int8), 64 * 256);
  EXPECT_EQ(bytes(Compute::f32), 4 * 64 * 256);
}

TEST(SyntheticWeights, UnknownFormatsAreRefused) {
  Log log;
  ThreadPool pool(1);
  Context context{pool, log};
  const std::unique_ptr<Ops> ops = make_backend("cpu", context);
  EngineOptions options;
  options.synthetic_layers = 1;
  options.synthetic_format = "q3tp";
  try {
    const Engine engine(context, *ops, options);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::usage);
    EXPECT_NE(std::string(error.what()).find("\"q3tp\" is not known, give q4tp or fp8"), std::string::npos);
  }
}

// Live adapters and what a step policy keeps between evaluations are planned.
TEST_F(PlacementTest, AdaptersAndPoliciesAreInThePlan) {
  const std::string path = write_adapter("h3_planned_adapter.safetensors", 0.001f);
  const std::unique_ptr<Engine> engine = engine_with({.mode = PlanMode::resident});
  const auto with = [&](bool adapter, const std::string& cache) {
    Request asked = smallest();
    asked.steps = 6;
    asked.cache = cache;
    if (adapter) asked.adapters = {{path, 1}};
    return resolve(asked, engine->facts());
  };
  const Placement plain = engine->placement(with(false, "")), adapted = engine->placement(with(true, ""));
  const Placement cached = engine->placement(with(true, "first-block"));
  EXPECT_EQ(plain.adapters, 0);
  EXPECT_GE(adapted.adapters, 4 * 2 * kRank * (kInner + kHidden));
  EXPECT_GE(adapted.peak, plain.peak + adapted.adapters);
  EXPECT_GT(cached.peak, adapted.peak);
  const std::unique_ptr<Engine> tight = engine_with({.mode = PlanMode::resident, .ram = cached.peak - 1});
  EXPECT_THROW(run(*tight, with(true, "first-block")), Error);
  std::remove(path.c_str());
}

// Whatever allocation fails, the run ends with an error that names it, leaves nothing behind, and the next one works.
TEST_F(PlacementTest, AFailedAllocationEndsOneRunOnly) {
  const std::unique_ptr<Engine> engine = engine_with({}, true);
  Device& device = ops_->device();
  const Clip expected = run(*engine, request(*engine));
  engine->release();  // the first run also made what the back end keeps
  const int64_t before = device.allocations();
  run(*engine, request(*engine));
  const int64_t count = device.allocations() - before;
  ASSERT_GT(count, 100);
  const std::string path = ::testing::TempDir() + "h3_failed_allocation.y4m";
  for (int64_t i = 0; i < 12; ++i) {
    const int64_t n = 1 + i * (count - 1) / 11;
    engine->release();
    device.fail_allocation(n);
    try {
      run(*engine, request(*engine, path));
      FAIL() << "allocation " << n << " of " << count << " did not fail";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::memory) << error.what();
      EXPECT_NE(std::string(error.what()).find("planned failure"), std::string::npos) << error.what();
    }
    device.fail_allocation(0);
    EXPECT_FALSE(std::filesystem::exists(path)) << "allocation " << n;
    if (i % 4 == 3) {
      EXPECT_EQ(run(*engine, request(*engine)), expected) << "after allocation " << n;
    }
  }
}

TEST(MemorySize, Amounts) {
  EXPECT_EQ(parse_memory("--vram", "12G"), int64_t{12} << 30);
  EXPECT_EQ(parse_memory("--vram", "800m"), int64_t{800} << 20);
  EXPECT_EQ(parse_memory("--vram", "1.5GiB"), int64_t{3} << 29);
  EXPECT_EQ(parse_memory("--ram", "2tb"), int64_t{2} << 40);
  EXPECT_EQ(parse_memory("--ram", "1048576"), 1048576);
  for (const char* wrong : {"", "G", "12X", "-4G", "0", "5", "12 G", "1e30", "nan", "12GG"}) {
    try {
      parse_memory("--vram", wrong);
      FAIL() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::usage);
      EXPECT_NE(std::string(error.what()).find("--vram"), std::string::npos);
    }
  }
  EXPECT_EQ(parse_plan_mode("stream"), PlanMode::stream);
  EXPECT_THROW(parse_plan_mode("fast"), Error);
}

}  // namespace
}  // namespace h3
