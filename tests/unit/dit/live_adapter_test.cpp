// Adapters beside a loaded denoiser.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "backends/ref/ref_ops.h"
#include "base/context.h"
#include "base/error.h"
#include "model/dit/adaln.h"
#include "model/dit/adapter.h"
#include "tests/unit/lora/adapter_files.h"

namespace h3 {
namespace {

using lora::Adapter;
using testing::adapter_source;
using testing::AdapterShape;
using testing::AdapterSpelling;
using testing::component_of;
using testing::config_of;
using testing::copy_without;
using testing::MemorySource;
using testing::toy_source;
using testing::ToySize;

struct Velocity {
  std::vector<float> video, audio;
  bool operator==(const Velocity&) const = default;
};

class LiveAdapterTest : public ::testing::Test {
 protected:
  LiveAdapterTest() : context_{pool_, log_}, ops_(make_ref_ops(context_)), layout_(build_layout(spec())) {}

  static LayoutSpec spec() {
    LayoutSpec out;
    out.text_tags = {1, 1, 1};
    out.latent_frames = 2;
    out.latent_height = 2;
    out.latent_width = 4;
    out.audio_latents = 2;
    return out;
  }
  std::unique_ptr<Dit> load(std::shared_ptr<TensorSource> source, DType type = DType::f32) {
    return load_dit(*ops_, component_of(std::move(source)), {type == DType::f32 ? Compute::f32 : Compute::bf16, type},
                    control_);
  }
  Velocity run(Dit& dit, std::vector<AdapterUse> adapters) {
    TorchGenerator generator(11);
    DitRequest request;
    request.layout = &layout_;
    request.text = generator.randn(layout_.text_count() * ToySize().text);
    request.video_times = {0.25f};
    request.audio_times = {0.5f};
    request.adapters = std::move(adapters);
    const std::unique_ptr<DitSession> session = dit.start(std::move(request), control_);
    const auto rows = [&](int64_t count, int64_t width) {
      return upload_f32(ops_->device(), generator.randn(count * width).data(), {count, width}, DType::f32, "rows");
    };
    const Tensor video = rows(layout_.target_video_rows(), ToySize().video_row);
    const Tensor audio = rows(layout_.target_audio_rows(), ToySize().audio_row);
    const Tensor vv = rows(layout_.target_video_rows(), ToySize().video_row);
    const Tensor va = rows(layout_.target_audio_rows(), ToySize().audio_row);
    session->evaluate(0, video, audio, vv, va);
    return {download_f32(vv), download_f32(va)};
  }
  static Adapter adapter(uint64_t seed, AdapterSpelling spelling = AdapterSpelling::comfy) {
    AdapterShape shape;
    shape.config = config_of(ToySize());
    shape.seed = seed;
    shape.alpha = 0.1f;
    return Adapter(lora::adapter_of(adapter_source(shape, spelling), "a.safetensors"), lora::TargetTable(shape.config),
                   {});
  }
  static double distance(const Velocity& a, const Velocity& b) {
    double square = 0, norm = 0;
    for (size_t i = 0; i < a.video.size(); ++i) {
      square += std::pow(static_cast<double>(a.video[i]) - b.video[i], 2);
      norm += std::pow(static_cast<double>(b.video[i]), 2);
    }
    return std::sqrt(square / norm);
  }

  ThreadPool pool_{1};
  Log log_;
  Context context_;
  std::unique_ptr<Ops> ops_;
  Control control_;
  PackedLayout layout_;
};

// W of every target replaced by W + strength * scale * B A.
std::shared_ptr<MemorySource> merged(const MemorySource& base, const std::vector<lora::Use>& uses) {
  std::vector<std::string> names;
  for (const lora::Site& site : uses[0].adapter->sites()) names.push_back(lora::name_of(site) + ".weight");
  const auto out = copy_without(base, names);
  for (const lora::Site& site : uses[0].adapter->sites()) {
    const TensorInfo* info = base.find(lora::name_of(site) + ".weight");
    std::vector<float> rows = base.values(info->name);
    lora::SiteMerge(uses, site).add(0, info->dims[0], rows.data());
    out->add(info->name, info->dims, rows);
  }
  out->done();
  return out;
}

TEST_F(LiveAdapterTest, EqualsTheMergedWeights) {
  const auto base = toy_source();
  const Adapter a = adapter(5), b = adapter(6);
  const std::unique_ptr<Dit> dit = load(base), both = load(merged(*base, {{&a, 0.75f}, {&b, -0.5f}}));
  const Velocity live = run(*dit, {{dit->load_adapter(a, control_), 0.75f}, {dit->load_adapter(b, control_), -0.5f}});
  EXPECT_LT(distance(live, run(*both, {})), 5e-6);
  EXPECT_GT(distance(live, run(*dit, {})), 1e-3);
}

TEST_F(LiveAdapterTest, FourSpellingsGiveTheSameBytes) {
  const std::unique_ptr<Dit> dit = load(toy_source());
  const Velocity comfy = run(*dit, {{dit->load_adapter(adapter(5), control_), 1}});
  for (const AdapterSpelling spelling : {AdapterSpelling::native, AdapterSpelling::peft, AdapterSpelling::kohya}) {
    const Adapter other = adapter(5, spelling);
    EXPECT_EQ(run(*dit, {{dit->load_adapter(other, control_), 1}}), comfy) << static_cast<int>(spelling);
  }
}

TEST_F(LiveAdapterTest, SwitchingLeavesTheBaseAsItWas) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const std::unique_ptr<Dit> untouched = load(toy_source(), type), dit = load(toy_source(), type);
    const Velocity base = run(*untouched, {});
    const auto a = dit->load_adapter(adapter(5), control_), b = dit->load_adapter(adapter(6), control_);
    const Velocity with_a = run(*dit, {{a, 1}});
    EXPECT_EQ(run(*dit, {}), base);
    EXPECT_NE(run(*dit, {{b, 1}}), with_a);
    EXPECT_EQ(run(*dit, {}), base);
    EXPECT_EQ(run(*dit, {{a, 1}}), with_a);
  }
}

// Two requests on one transformer, evaluation by evaluation in turns: each has the bytes it has alone.
TEST_F(LiveAdapterTest, InterleavedRequestsAreTwoSeparateOnes) {
  const std::unique_ptr<Dit> dit = load(toy_source());
  const auto a = dit->load_adapter(adapter(5), control_), b = dit->load_adapter(adapter(6), control_);
  struct Request {
    std::unique_ptr<DitSession> session;
    Tensor video, audio, vv, va;
    std::vector<Velocity> seen;
  };
  const auto begin = [&](std::vector<AdapterUse> uses, uint64_t seed) {
    TorchGenerator generator(seed);
    const auto rows = [&](int64_t count, int64_t width) {
      return upload_f32(ops_->device(), generator.randn(count * width).data(), {count, width}, DType::f32, "rows");
    };
    DitRequest request;
    request.layout = &layout_;
    request.text = generator.randn(layout_.text_count() * ToySize().text);
    request.video_times = {0.25f, 0.5f, 0.75f};
    request.audio_times = {0.5f, 0.6f, 0.7f};
    request.adapters = std::move(uses);
    Request out;
    out.video = rows(layout_.target_video_rows(), ToySize().video_row);
    out.audio = rows(layout_.target_audio_rows(), ToySize().audio_row);
    out.vv = rows(layout_.target_video_rows(), ToySize().video_row);
    out.va = rows(layout_.target_audio_rows(), ToySize().audio_row);
    out.session = dit->start(std::move(request), control_);
    return out;
  };
  const auto evaluate = [](Request& r, int step) {
    r.session->evaluate(step, r.video, r.audio, r.vv, r.va);
    r.seen.push_back({download_f32(r.vv), download_f32(r.va)});
  };
  const std::vector<std::vector<AdapterUse>> uses = {{{a, 1}}, {{b, 0.5f}, {a, -1}}, {}};
  std::vector<std::vector<Velocity>> alone;
  for (size_t i = 0; i < uses.size(); ++i) {
    Request request = begin(uses[i], i);
    for (int step = 0; step < 3; ++step) evaluate(request, step);
    alone.push_back(request.seen);
  }
  std::vector<Request> together;
  for (size_t i = 0; i < uses.size(); ++i) together.push_back(begin(uses[i], i));
  for (int step = 0; step < 3; ++step) {
    for (Request& request : together) evaluate(request, step);
  }
  for (size_t i = 0; i < uses.size(); ++i) EXPECT_EQ(together[i].seen, alone[i]) << i;
}

// silu(temb(t)) on a grid of t, [points, width], as the adapter's neighbour file has it.
std::vector<float> silu_grid(Ops& ops, const dit::Source& source, int64_t points) {
  std::vector<float> times;
  for (int64_t i = 0; i < points; ++i) times.push_back(static_cast<float>(i) / static_cast<float>(points - 1));
  const Tensor embedded = dit::embed_times(ops, source, times);
  ops.silu(embedded, embedded);
  return download_f32(embedded);
}

// Pairs on every AdaLN projection, written against the full width.
std::shared_ptr<MemorySource> adaln_adapter(const ToySize& n, const std::vector<float>& grid) {
  TorchGenerator generator(21);
  auto source = std::make_shared<MemorySource>();
  const auto pair = [&](const std::string& module, int64_t rows) {
    source->add(module + ".lora_A.weight", {2, n.time}, generator.randn(2 * n.time));
    source->add(module + ".lora_B.weight", {rows, 2}, generator.randn(rows * 2));
  };
  for (int64_t i = 0; i < n.layers; ++i) {
    pair("blocks." + std::to_string(i) + ".adaln_proj.linear", 18 * n.hidden);
  }
  pair("final_layer.adaln_proj.linear", 2 * n.hidden);
  if (!grid.empty()) source->add("silu_t_emb_grid", {static_cast<int64_t>(grid.size()) / n.time, n.time}, grid);
  source->done();
  return source;
}

TEST_F(LiveAdapterTest, AdalnBranchesEqualTheMergedProjection) {
  const auto base = toy_source();
  const std::unique_ptr<Dit> dit = load(base);
  const Adapter a(lora::adapter_of(adaln_adapter(ToySize(), {}), "larry.safetensors"), lora::TargetTable(dit->config()),
                  {});
  EXPECT_EQ(a.coverage().projections, 4);
  const std::unique_ptr<Dit> other = load(merged(*base, {{&a, 0.3f}}));
  EXPECT_LT(distance(run(*dit, {{dit->load_adapter(a, control_), 0.3f}}), run(*other, {})), 5e-6);
}

// The toy with its time embedder replaced by a curve of full rank: nothing is lost, so both bases must agree.
std::shared_ptr<MemorySource> curved(const MemorySource& full, const std::vector<float>& grid) {
  std::vector<std::string> drop;
  for (const TensorInfo& info : full.tensors()) {
    if (info.name.starts_with("time_embedder.")) drop.push_back(info.name);
  }
  const auto out = copy_without(full, drop);
  out->add("adaln_t_table", {static_cast<int64_t>(grid.size()) / ToySize().time, ToySize().time}, grid);
  out->done();
  return out;
}

TEST_F(LiveAdapterTest, AdalnBranchesWorkOnAPrunedBaseThroughTheGrid) {
  const auto base = toy_source();
  const dit::Source source = dit::read_source(component_of(base), log_);
  const std::vector<float> grid = silu_grid(*ops_, source, 1025);
  const std::unique_ptr<Dit> full = load(base), pruned = load(curved(*base, grid));
  // Against the curve the width of the branches is that of the grid by chance; a narrower curve is the real case.
  const Adapter with(lora::adapter_of(adaln_adapter(ToySize(), grid), "larry.safetensors"),
                     lora::TargetTable(pruned->config()), {});
  const Adapter plain(lora::adapter_of(adaln_adapter(ToySize(), {}), "larry.safetensors"),
                      lora::TargetTable(full->config()), {});
  const Velocity want = run(*full, {{full->load_adapter(plain, control_), 0.3f}});
  EXPECT_LT(distance(run(*pruned, {{pruned->load_adapter(with, control_), 0.3f}}), want), 1e-4);
}

TEST_F(LiveAdapterTest, AdalnBranchesWithoutAGridAreRefusedOnAPrunedBase) {
  const auto base = toy_source();
  std::vector<std::string> drop;
  for (const TensorInfo& info : base->tensors()) {
    if (info.name.starts_with("time_embedder.") || info.name.find("adaln_proj.linear.weight") != std::string::npos) {
      drop.push_back(info.name);
    }
  }
  const auto pruned = copy_without(*base, drop);
  TorchGenerator generator(4);
  pruned->add("adaln_t_table", {33, 4}, generator.randn(33 * 4));
  for (int i = 0; i < 3; ++i) {
    pruned->add("blocks." + std::to_string(i) + ".adaln_proj.linear.weight", {18 * 24, 4},
                generator.randn(18 * 24 * 4));
  }
  pruned->add("final_layer.adaln_proj.linear.weight", {48, 4}, generator.randn(48 * 4));
  pruned->done();
  const std::unique_ptr<Dit> dit = load(pruned);
  const Adapter a(lora::adapter_of(adaln_adapter(ToySize(), {}), "larry.safetensors"), lora::TargetTable(dit->config()),
                  {});
  try {
    dit->load_adapter(a, control_);
    FAIL() << "an adapter without a grid was taken";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("h3_silu_temb_grid.safetensors"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace h3
