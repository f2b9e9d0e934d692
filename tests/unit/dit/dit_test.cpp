#include "model/dit/dit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/ref/ref_ops.h"
#include "base/context.h"
#include "base/error.h"
#include "model/dit/adaln.h"
#include "model/dit/block.h"
#include "model/dit/session.h"
#include "sampling/rng.h"
#include "tests/unit/dit/toy_checkpoint.h"

namespace h3 {
namespace {

using testing::component_of;
using testing::copy_without;
using testing::MemorySource;
using testing::toy_source;
using testing::ToySize;

LayoutSpec toy_spec() {
  using Kind = LayoutBlock::Kind;
  LayoutSpec spec;
  spec.text_tags = {1, 0, 0, 1, 1};
  spec.latent_frames = 2;
  spec.latent_height = 4;
  spec.latent_width = 6;
  spec.audio_latents = 4;
  spec.blocks = {{Kind::video, 1, 2, 2, 3}, {Kind::image, 1, 4, 2, 0}};
  return spec;
}

struct Result {
  std::vector<float> video, audio;
  bool operator==(const Result&) const = default;
};

class DitTest : public ::testing::Test {
 protected:
  DitTest() : context_{pool_, log_}, ops_(make_ref_ops(context_)), layout_(build_layout(toy_spec())) {}

  std::unique_ptr<Dit> load(const Component& component, DType type = DType::f32) {
    return load_dit(*ops_, component, {type == DType::f32 ? Compute::f32 : Compute::bf16, type}, control_);
  }

  DitRequest request(std::vector<float> video_times, std::vector<float> audio_times) {
    TorchGenerator generator(11);
    DitRequest out;
    out.layout = &layout_;
    out.text = generator.randn(layout_.text_count() * ToySize().text);
    out.condition_video = generator.randn(layout_.condition_video_rows * ToySize().video_row);
    out.condition_audio = generator.randn(layout_.condition_audio_rows * ToySize().audio_row);
    out.video_times = std::move(video_times);
    out.audio_times = std::move(audio_times);
    return out;
  }

  struct Buffers {
    Tensor video, audio, video_velocity, audio_velocity;
  };
  Buffers buffers() {
    TorchGenerator generator(12);
    Device& device = ops_->device();
    const std::vector<int64_t> video{layout_.target_video_rows(), ToySize().video_row};
    const std::vector<int64_t> audio{layout_.target_audio_rows(), ToySize().audio_row};
    Buffers out;
    out.video = upload_f32(device, generator.randn(video[0] * video[1]).data(), video, DType::f32, "rows");
    out.audio = upload_f32(device, generator.randn(audio[0] * audio[1]).data(), audio, DType::f32, "rows");
    out.video_velocity = Tensor(device, DType::f32, video, "velocity");
    out.audio_velocity = Tensor(device, DType::f32, audio, "velocity");
    return out;
  }

  Result evaluate(DitSession& session, int evaluation, const std::vector<int64_t>& cuts = {}) {
    const Buffers b = buffers();
    session.embed(evaluation, b.video, b.audio);
    int64_t first = 0;
    for (int64_t cut : cuts) {
      session.blocks(first, cut);
      first = cut;
    }
    session.blocks(first, session.layers());
    session.head(b.video_velocity, b.audio_velocity);
    ops_->sync();
    return {download_f32(b.video_velocity), download_f32(b.audio_velocity)};
  }

  Result run(const Component& component, DType type = DType::f32) {
    const std::unique_ptr<Dit> dit = load(component, type);
    return evaluate(*dit->start(request({0.25f}, {0.5f}), control_), 0);
  }

  std::string error_of(const Component& component) {
    try {
      load(component);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  ThreadPool pool_{2};
  std::vector<std::string> messages_;
  Log log_{[this](LogLevel, const std::string& text) { messages_.push_back(text); }};
  Context context_;
  Control control_;
  std::unique_ptr<Ops> ops_;
  PackedLayout layout_;
};

TEST_F(DitTest, DimensionsComeFromShapes) {
  const std::unique_ptr<Dit> dit = load(component_of(toy_source()));
  const DitConfig& config = dit->config();
  const ToySize n;
  EXPECT_EQ(config.hidden, n.hidden);
  EXPECT_EQ(config.heads, n.heads);
  EXPECT_EQ(config.head_dim, n.head_dim);
  EXPECT_EQ(config.ffn, n.ffn);
  EXPECT_EQ(config.layers, n.layers);
  EXPECT_EQ(config.refiner_layers, n.refiner);
  EXPECT_EQ(config.text_dim, n.text);
  EXPECT_EQ(config.video_row, n.video_row);
  EXPECT_EQ(config.audio_row, n.audio_row);
  EXPECT_EQ(config.rope_pairs, n.rope);
  EXPECT_GT(dit->weight_bytes(), 0);
}

TEST_F(DitTest, InspectionCountsEveryWeight) {
  const std::shared_ptr<MemorySource> source = toy_source();
  const DitInspection found = inspect_dit(component_of(source), log_);
  const ToySize n;
  EXPECT_EQ(found.block_values, 5 * (4 * n.inner() + 3 * n.ffn) * n.hidden);
  EXPECT_EQ(found.block_stored_bytes, 4 * found.block_values);
  EXPECT_EQ(found.adaln_values, (3 * 18 + 2) * n.hidden * n.time);
  int64_t all = 0, apart = 0;  // apart: time embedder, AdaLN biases, rotary table
  for (const TensorInfo& info : source->tensors()) {
    const int64_t values = static_cast<int64_t>(info.data.size() / sizeof(float));
    all += values;
    const bool bias = info.name.find("adaln") != std::string::npos && info.dims.size() == 1;
    if (bias || info.name.rfind("time_embedder", 0) == 0 || info.name == "rope.inv_freq") apart += values;
  }
  EXPECT_EQ(found.block_values + found.adaln_values + found.other_values + apart, all);
}

TEST_F(DitTest, WhereAnEvaluationIsCutDoesNotChangeABit) {
  for (DType type : {DType::f32, DType::bf16}) {
    const std::unique_ptr<Dit> dit = load(component_of(toy_source()), type);
    const std::unique_ptr<DitSession> session = dit->start(request({0.25f}, {0.5f}), control_);
    const Result whole = evaluate(*session, 0);
    EXPECT_EQ(whole, evaluate(*session, 0, {1}));
    EXPECT_EQ(whole, evaluate(*session, 0, {1, 2}));
    EXPECT_EQ(whole, evaluate(*session, 0, {0, 2}));
    for (float v : whole.video) ASSERT_TRUE(std::isfinite(v));
  }
}

TEST_F(DitTest, TheLoopAllocatesNothingAndThePlanIsExact) {
  for (DType type : {DType::f32, DType::bf16}) {
    const std::unique_ptr<Dit> dit = load(component_of(toy_source()), type);
    const std::vector<float> video{0, 0.25f, 0.5f}, audio{0, 0.5f, 0.75f};
    Device& device = ops_->device();
    const int64_t before = device.allocated_bytes();
    const std::unique_ptr<DitSession> session = dit->start(request(video, audio), control_);
    const DitMemory memory = dit_session_memory(dit->config(), layout_, 3, type);
    EXPECT_EQ(session->bytes(), memory.workspace);
    const int64_t held = device.allocated_bytes() - before;
    EXPECT_LE(held, memory.workspace + memory.modulation);
    EXPECT_GE(held, memory.workspace);
    const Buffers b = buffers();
    const int64_t allocations = device.allocations();
    for (int i = 0; i < 3; ++i) session->evaluate(i, b.video, b.audio, b.video_velocity, b.audio_velocity);
    EXPECT_EQ(device.allocations(), allocations);
  }
}

TEST_F(DitTest, AScheduleGivesWhatItsTimesGiveAlone) {
  const std::unique_ptr<Dit> dit = load(component_of(toy_source()));
  const std::vector<float> video{0, 0.25f, 0.9995f}, audio{0, 0.5f, 0.75f};
  const std::unique_ptr<DitSession> all = dit->start(request(video, audio), control_);
  for (int i : {2, 0, 1}) {
    const std::unique_ptr<DitSession> one = dit->start(request({video[i]}, {audio[i]}), control_);
    EXPECT_EQ(evaluate(*all, i), evaluate(*one, 0)) << i;
  }
}

TEST_F(DitTest, SessionsOfEqualTimesShareTheirModulation) {
  const std::unique_ptr<Dit> dit = load(component_of(toy_source()));
  const std::unique_ptr<DitSession> first = dit->start(request({0.25f}, {0.5f}), control_);
  const int64_t before = ops_->device().allocated_bytes();
  const std::unique_ptr<DitSession> second = dit->start(request({0.25f}, {0.5f}), control_);
  EXPECT_EQ(ops_->device().allocated_bytes() - before, second->bytes());
  EXPECT_EQ(evaluate(*first, 0), evaluate(*second, 0));
}

// The same weights with qkv rows interleaved per head.
std::shared_ptr<MemorySource> as_official(const MemorySource& comfy) {
  const ToySize n;
  auto out = std::make_shared<MemorySource>();
  for (const TensorInfo& info : comfy.tensors()) {
    const std::vector<float> values = comfy.values(info.name);
    std::vector<float> moved = values;
    const bool qkv = info.name.find("qkv_proj") != std::string::npos;
    for (int64_t part = 0; qkv && part < 3; ++part) {
      for (int64_t head = 0; head < n.heads; ++head) {
        const int64_t count = n.head_dim * n.hidden;
        std::copy_n(values.begin() + (part * n.heads + head) * count, count, moved.begin() + (head * 3 + part) * count);
      }
    }
    out->add(info.name, info.dims, moved);
  }
  out->done();
  return out;
}

std::string diffusers_name(std::string name) {
  const std::pair<const char*, const char*> renames[] = {
      {"blocks.", "transformer_blocks."},
      {"token_refiner.blocks", "token_refiner.refiner_blocks"},
      {"video_patch_proj", "proj_in"},
      {"audio_patch_proj", "audio_proj_in"},
      {"condition_proj", "context_embedder"},
      {"time_embedder.proj_in", "time_embedder.linear_1"},
      {"time_embedder.proj_out", "time_embedder.linear_2"},
      {"final_layer.norm", "norm_out.norm"},
      {"final_layer.adaln_proj.linear", "norm_out.linear"},
      {"final_layer.video_out", "proj_out"},
      {"final_layer.audio_out", "audio_proj_out"},
  };
  const std::pair<const char*, const char*> parts[] = {
      {"attn.q_norm", "attn.norm_q"}, {"attn.k_norm", "attn.norm_k"}, {"attn.out_proj", "attn.to_out.0"},
      {"mlp.fc1", "ff.net.0.proj"},   {"mlp.fc2", "ff.net.2"},
  };
  for (const auto& [from, to] : renames) {
    if (name.rfind(from, 0) != 0) continue;
    name.replace(0, std::strlen(from), to);
    break;
  }
  for (const auto& [from, to] : parts) {
    const size_t at = name.find(from);
    if (at != std::string::npos) name.replace(at, std::strlen(from), to);
  }
  return name;
}

// The same weights with q, k and v apart and [value; gate].
std::shared_ptr<MemorySource> as_diffusers(const MemorySource& comfy) {
  const ToySize n;
  auto out = std::make_shared<MemorySource>();
  for (const TensorInfo& info : comfy.tensors()) {
    if (info.name == "rope.inv_freq") continue;
    const std::string name = diffusers_name(info.name);
    std::vector<float> values = comfy.values(info.name);
    const size_t qkv = name.find("qkv_proj");
    if (qkv == std::string::npos) {
      if (name.find("ff.net.0") != std::string::npos) {
        std::rotate(values.begin(), values.begin() + n.ffn * n.hidden, values.end());
      }
      out->add(name, info.dims, values);
      continue;
    }
    const int64_t third = n.inner() * n.hidden;
    for (int part = 0; part < 3; ++part) {
      std::string to = name;
      to.replace(qkv, 8, part == 0 ? "to_q" : part == 1 ? "to_k" : "to_v");
      out->add(to, {n.inner(), n.hidden}, {values.begin() + part * third, values.begin() + (part + 1) * third});
    }
  }
  out->done();
  return out;
}

TEST_F(DitTest, EverySpellingGivesTheSameBytes) {
  const std::shared_ptr<MemorySource> comfy = toy_source();
  for (DType type : {DType::f32, DType::bf16}) {
    const Result expected = run(component_of(comfy), type);
    EXPECT_TRUE(expected == run(component_of(as_official(*comfy), QkvOrder::interleaved), type));
    EXPECT_TRUE(expected == run(component_of(as_diffusers(*comfy)), type));
    EXPECT_FALSE(expected == run(component_of(as_official(*comfy)), type));  // a wrong order loads, and is noise
  }
}

// The toy with a time curve instead of a time embedder; `own` gives every projection its own table under cortiq's
// names.
std::shared_ptr<MemorySource> as_curve(const MemorySource& comfy, bool own) {
  constexpr int64_t kRank = 3, kPoints = 5;
  auto out = std::make_shared<MemorySource>();
  TorchGenerator generator(21);
  const std::vector<float> table = generator.randn(kPoints * kRank);
  if (!own) out->add("adaln_t_table", {kPoints, kRank}, table);
  for (const TensorInfo& info : comfy.tensors()) {
    std::string name = info.name;
    if (name.rfind("time_embedder.", 0) == 0) continue;
    if (own && name == "rope.inv_freq") name = "rope_inv_freq";
    const size_t at = name.find("adaln_proj.linear.");
    if (at != std::string::npos && own) name.replace(at, std::strlen("adaln_proj.linear."), "adaln.");
    if (at == std::string::npos || info.dims.size() != 2) {
      out->add(name, info.dims, comfy.values(info.name));
      continue;
    }
    out->add(name, {info.dims[0], kRank}, generator.randn(info.dims[0] * kRank));
    if (own) out->add(name.substr(0, name.size() - std::strlen("weight")) + "table", {kPoints, kRank}, table);
  }
  out->done();
  return out;
}

TEST_F(DitTest, CurvesSharedOrPerBlock) {
  const std::shared_ptr<MemorySource> comfy = toy_source();
  const Result shared = run(component_of(as_curve(*comfy, false)));
  EXPECT_TRUE(shared == run(component_of(as_curve(*comfy, true))));
  EXPECT_FALSE(shared == run(component_of(comfy)));
  for (float v : shared.video) ASSERT_TRUE(std::isfinite(v));
}

TEST_F(DitTest, OneErrorListsWhatIsWrongWithTheWeights) {
  const std::shared_ptr<MemorySource> source = copy_without(
      *toy_source(), {"blocks.1.attn.out_proj.weight", "time_embedder.proj_out.bias", "blocks.2.norm1.weight"});
  source->add("blocks.2.norm1.weight", {3}, {1, 1, 1});
  source->add("blocks.0.attn.extra", {1}, {1});
  source->done();
  const std::string text = error_of(component_of(source));
  for (const char* part : {"blocks.1.attn.out_proj.weight", "time_embedder.proj_out.bias",
                           "blocks.2.norm1.weight is [3]", "blocks.0.attn.extra", "toy.safetensors"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
  const auto empty = std::make_shared<MemorySource>();
  empty->done();
  EXPECT_NE(error_of(component_of(empty)).find("no transformer blocks"), std::string::npos);
}

TEST_F(DitTest, AProjectionMustBeAsWideAsItsCurve) {
  const std::shared_ptr<MemorySource> source =
      copy_without(*as_curve(*toy_source(), false), {"blocks.0.adaln_proj.linear.weight"});
  source->add("blocks.0.adaln_proj.linear.weight", {18 * ToySize().hidden, 1},
              std::vector<float>(static_cast<size_t>(18 * ToySize().hidden)));
  source->done();
  EXPECT_NE(error_of(component_of(source)).find("blocks.0.adaln_proj.linear.weight reads 1"), std::string::npos);
}

TEST_F(DitTest, MultiHeadFilesAreRefusedByName) {
  const ToySize n;
  const std::shared_ptr<MemorySource> source = copy_without(*toy_source(), {"final_layer.video_out.weight"});
  source->add("final_layer.video_out.weight", {4 * n.video_row, n.hidden},
              std::vector<float>(static_cast<size_t>(4 * n.video_row * n.hidden)));
  source->done();
  EXPECT_NE(error_of(component_of(source)).find("PDD"), std::string::npos);
}

TEST_F(DitTest, SparseGatesAreIgnoredWithANote) {
  const Result plain = run(component_of(toy_source()));
  const std::shared_ptr<MemorySource> source = copy_without(*toy_source());
  source->add("blocks.0.attn.to_gate_compress.weight", {4, 4}, std::vector<float>(16));
  source->done();
  messages_.clear();
  EXPECT_TRUE(plain == run(component_of(source)));
  ASSERT_EQ(messages_.size(), 1u);
  EXPECT_NE(messages_[0].find("to_gate_compress"), std::string::npos);
}

TEST_F(DitTest, AWrongEmbeddingWidthIsAnError) {
  const std::unique_ptr<Dit> dit = load(component_of(toy_source()));
  DitRequest wrong = request({0.25f}, {0.5f});
  wrong.text.pop_back();
  EXPECT_THROW(dit->start(std::move(wrong), control_), Error);
  EXPECT_THROW(load_dit(*ops_, component_of(toy_source()), {Compute::f16, DType::f16}, control_), Error);
}

TEST_F(DitTest, AStopLandsWithinABlock) {
  const std::unique_ptr<Dit> dit = load(component_of(toy_source()));
  const std::unique_ptr<DitSession> session = dit->start(request({0.25f}, {0.5f}), control_);
  const Buffers b = buffers();
  session->embed(0, b.video, b.audio);
  control_.request_stop();
  try {
    session->blocks(0, 1);
    FAIL() << "did not stop";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::cancelled);
  }
}

TEST_F(DitTest, ChunksOfTheMlpDoNotChangeABit) {
  const dit::Source source = dit::read_source(component_of(toy_source()), log_);
  const DitConfig& config = source.config;
  for (DType type : {DType::f32, DType::bf16}) {
    const dit::Block block =
        dit::make_block(*ops_, source.blocks[0], "block", type == DType::f32 ? Compute::f32 : Compute::bf16);
    const int64_t rows = 7;
    const Tensor h = upload_f32(ops_->device(), TorchGenerator(3).randn(rows * config.hidden).data(),
                                {rows, config.hidden}, type, "h");
    std::vector<float> expected;
    for (int64_t chunk : {int64_t{7}, int64_t{3}, int64_t{1}}) {
      const Tensor hidden(ops_->device(), type, {chunk, 2 * config.ffn}, "gate and value");
      const Tensor y(ops_->device(), type, {rows, config.hidden}, "y");
      dit::mlp_branch(*ops_, block, {}, config, h, {{}, {}, hidden, {}}, y, {}, "");
      const std::vector<float> got = download_f32(y);
      if (expected.empty()) expected = got;
      EXPECT_EQ(got, expected) << chunk;
    }
  }
}

TEST(RotaryTables, PositionsRoundBeforeTheProduct) {
  const dit::RotaryTables tables = dit::rotary_tables({1e6 + 1.0 / 3, 0, -16}, {1.0f, 0.5f});
  ASSERT_EQ(tables.cos.size(), 6u);
  EXPECT_EQ(tables.cos[0], static_cast<float>(std::cos(static_cast<double>(static_cast<float>(1e6 + 1.0 / 3)))));
  EXPECT_EQ(tables.sin[2], 0.0f);
  EXPECT_EQ(tables.sin[5], static_cast<float>(std::sin(-8.0)));
}

TEST(TimeCurve, LerpKeepsItsEnds) {
  const std::vector<float> curve = {0, 1, 4, 2, 8, 5};  // 3 points, rank 2
  EXPECT_EQ(dit::curve_coordinates(curve, 2, {0.0f, 0.25f, 0.5f, 1.0f, 7.0f, -1.0f}),
            (std::vector<float>{0, 1, 2, 1.5f, 4, 2, 8, 5, 8, 5, 0, 1}));
}

TEST(TimeSinusoid, CosinesComeFirst) {
  const std::vector<float> waves = dit::time_sinusoid({0.0f, 1.0f}, 256);
  EXPECT_EQ(waves[0], 1.0f);
  EXPECT_EQ(waves[128], 0.0f);
  EXPECT_EQ(waves[256], static_cast<float>(std::cos(1.0)));
  EXPECT_NEAR(waves[256 + 255], 1.0746076e-4, 1e-10);  // the slowest frequency
}

TEST(ModulationPlan, OnlyPairsThatAreReadGetARow) {
  const PackedLayout layout = build_layout(toy_spec());
  const dit::ModulationPlan plan = dit::plan_modulation(layout, {0, 0.25f}, {0, 0.5f});
  EXPECT_EQ(plan.times[0], (std::vector<float>{0, 0.25f, 0.999f}));  // video and vision rows, conditions
  EXPECT_EQ(plan.times[1], (std::vector<float>{0, 0.25f}));          // text
  EXPECT_EQ(plan.times[2], (std::vector<float>{0, 0.5f, 1}));        // sound, reference sound
  EXPECT_EQ(plan.final_times, (std::vector<float>{0, 0.25f, 0.5f}));
  ASSERT_EQ(static_cast<int64_t>(plan.ids.size()), 2 * layout.rows);
  EXPECT_EQ(plan.ids[layout.rows], 3 + 1);                         // text at 0.25
  EXPECT_EQ(plan.ids[layout.rows + 1], 1);                         // vision row at 0.25
  EXPECT_EQ(plan.ids[layout.rows + layout.video_rows[0]], 2);      // condition
  EXPECT_EQ(plan.ids[layout.rows + layout.audio_rows[0]], 5 + 2);  // reference sound
}

}  // namespace
}  // namespace h3
