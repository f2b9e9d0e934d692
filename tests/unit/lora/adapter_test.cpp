#include "model/lora/adapter.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/lora/names.h"
#include "tests/unit/lora/adapter_files.h"

namespace h3 {
namespace {

using lora::Adapter;
using lora::adapter_of;
using lora::Branch;
using lora::Site;
using lora::TargetTable;
using testing::adapter_source;
using testing::AdapterShape;
using testing::AdapterSpelling;
using testing::config_of;
using testing::copy_without;
using testing::MemorySource;
using testing::ToySize;

AdapterShape toy_shape() {
  AdapterShape shape;
  shape.config = config_of(ToySize());
  return shape;
}

Adapter bind_to(std::shared_ptr<TensorSource> source, const DitConfig& config, bool partial = false,
                const std::string& path = "a.safetensors") {
  return Adapter(adapter_of(std::move(source), path), TargetTable(config), {.partial = partial});
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Every value of every branch of every site.
std::vector<float> everything(const Adapter& adapter) {
  std::vector<float> out;
  for (const Site& site : adapter.sites()) {
    for (const Branch& branch : adapter.branches(site)) {
      std::vector<float> up(static_cast<size_t>(branch.up.rows * branch.rank()));
      branch.up.decode_rows(0, branch.up.rows, up.data());
      std::vector<float> down(static_cast<size_t>(branch.rank() * branch.down.cols));
      for (int64_t k = 0; k < branch.rank(); ++k) {
        row_of(branch.down.format).decode_row(branch.down, k, &down[k * branch.down.cols]);
      }
      out.push_back(static_cast<float>(branch.first_row));
      out.push_back(branch.scale);
      out.insert(out.end(), up.begin(), up.end());
      out.insert(out.end(), down.begin(), down.end());
    }
  }
  return out;
}

TEST(Adapter, TheReleaseFileCovers208Of208Targets) {
  AdapterShape shape;
  shape.config.hidden = 6;
  shape.config.heads = 1;
  shape.config.head_dim = 4;
  shape.config.ffn = 5;
  shape.config.layers = 50;
  shape.config.refiner_layers = 2;
  shape.config.time_dim = 7;
  shape.rank = 128;
  shape.alpha = 128;
  const auto source = adapter_source(shape, AdapterSpelling::comfy);
  ASSERT_EQ(source->tensors().size(), 624u);
  const Adapter adapter = bind_to(source, shape.config);
  EXPECT_EQ(adapter.coverage().matrices, 208);
  EXPECT_EQ(adapter.coverage().all_matrices, 208);
  EXPECT_EQ(adapter.coverage().least_rank, 128);
  EXPECT_EQ(adapter.coverage().most_rank, 384);
  EXPECT_TRUE(adapter.notes().empty());
  EXPECT_EQ(adapter.coverage().to_text(),
            "208 of 208 block matrices, 0 of 51 AdaLN projections, 208 pairs in 624 tensors, ranks 128 to 384, alpha "
            "from the file");
  const std::vector<Branch> qkv = adapter.branches({Site::Stack::trunk, 7, Site::Part::qkv});
  ASSERT_EQ(qkv.size(), 3u);  // the zeros between q, k and v are gone
  EXPECT_EQ(qkv[1].first_row, 4);
  EXPECT_EQ(qkv[1].rank(), 128);
  EXPECT_EQ(qkv[1].scale, 1.0f);
}

TEST(Adapter, FourSpellingsGiveTheSameBranches) {
  const AdapterShape shape = toy_shape();
  const std::vector<float> comfy = everything(bind_to(adapter_source(shape, AdapterSpelling::comfy), shape.config));
  ASSERT_FALSE(comfy.empty());
  for (const AdapterSpelling spelling : {AdapterSpelling::native, AdapterSpelling::peft, AdapterSpelling::kohya}) {
    EXPECT_EQ(everything(bind_to(adapter_source(shape, spelling), shape.config)), comfy) << static_cast<int>(spelling);
  }
}

TEST(Adapter, AFusedPairThatIsNotBlockDiagonalStaysWhole) {
  const AdapterShape shape = toy_shape();
  const auto source = adapter_source(shape, AdapterSpelling::comfy);
  const std::string name = "diffusion_model.blocks.0.attn.qkv_proj.lora_B.weight";
  std::vector<float> up = source->values(name);
  up[3] = 1;  // q now also reads the k part of A
  const auto changed = copy_without(*source, {name});
  changed->add(name, source->find(name)->dims, up);
  changed->done();
  EXPECT_EQ(bind_to(changed, shape.config).branches({Site::Stack::trunk, 0, Site::Part::qkv}).size(), 1u);
}

TEST(Adapter, DamagedFilesAreErrorsThatNameTheTensor) {
  const AdapterShape shape = toy_shape();
  const auto good = adapter_source(shape, AdapterSpelling::comfy);
  const std::string a = "diffusion_model.blocks.1.mlp.fc2.lora_A.weight";
  const std::string b = "diffusion_model.blocks.1.mlp.fc2.lora_B.weight";
  const auto without = [&](const std::string& name, const std::function<void(MemorySource&)>& add) {
    const auto source = copy_without(*good, {name});
    add(*source);
    source->done();
    return error_of([&] { bind_to(source, shape.config); });
  };
  const std::vector<float> down = good->values(a), up = good->values(b);
  const std::string missing = without(b, [](MemorySource&) {});
  EXPECT_NE(missing.find("the B of blocks.1.mlp.fc2 is missing"), std::string::npos) << missing;
  const std::string extra = without("", [&](MemorySource& s) {
    s.add("diffusion_model.blocks.9.mlp.fc2.lora_A.weight", {2, 40}, down);
  });
  EXPECT_NE(extra.find("diffusion_model.blocks.9.mlp.fc2.lora_A.weight is left over"), std::string::npos) << extra;
  const std::string transposed = without(a, [&](MemorySource& s) { s.add(a, {40, 2}, down); });
  EXPECT_NE(transposed.find(a + " has shape [40, 2], [rank, 40] is expected (it is transposed)"), std::string::npos)
      << transposed;
  const std::string rank = without(b, [&](MemorySource& s) { s.add(b, {24, 1}, {up.begin(), up.begin() + 24}); });
  EXPECT_NE(rank.find(b + " has rank 1, but " + a + " has 2"), std::string::npos) << rank;
  const std::string alpha = without("diffusion_model.blocks.1.mlp.fc2.alpha", [](MemorySource&) {});
  EXPECT_NE(alpha.find("the alpha of blocks.1.mlp.fc2 is missing"), std::string::npos) << alpha;
  const std::string full = without("", [&](MemorySource& s) {
    s.add("blocks.1.mlp.fc1.diff", {80, 24}, std::vector<float>(80 * 24));
  });
  EXPECT_NE(full.find("blocks.1.mlp.fc1.diff holds a full difference"), std::string::npos) << full;
}

TEST(Adapter, PartialLeavesOutWhatFitsNothing) {
  const AdapterShape shape = toy_shape();
  const auto source = copy_without(*adapter_source(shape, AdapterSpelling::comfy));
  source->add("diffusion_model.blocks.9.mlp.fc2.lora_A.weight", {2, 40}, std::vector<float>(80));
  source->done();
  EXPECT_NE(error_of([&] { bind_to(source, shape.config); }), "");
  const Adapter adapter = bind_to(source, shape.config, true);
  EXPECT_EQ(adapter.coverage().left_over, std::vector<std::string>{"diffusion_model.blocks.9.mlp.fc2.lora_A.weight"});
}

TEST(Adapter, SplitProjectionsMayBeAFew) {
  const AdapterShape shape = toy_shape();
  const auto native = adapter_source(shape, AdapterSpelling::native);
  std::vector<std::string> drop;
  for (const TensorInfo& info : native->tensors()) {
    if (info.name.find("attn.to_k.") != std::string::npos) drop.push_back(info.name);
  }
  const auto source = copy_without(*native, drop);
  source->done();
  const std::vector<Branch> qkv = bind_to(source, shape.config).branches({Site::Stack::trunk, 2, Site::Part::qkv});
  ASSERT_EQ(qkv.size(), 2u);
  EXPECT_EQ(qkv[1].first_row, 2 * shape.config.inner());
}

TEST(Adapter, AMissingAlphaComesFromTheRecipeAndIsTold) {
  const AdapterShape shape = toy_shape();
  const auto native = adapter_source(shape, AdapterSpelling::native);
  std::vector<std::string> alphas;
  for (const TensorInfo& info : native->tensors()) {
    if (info.name.ends_with(".alpha")) alphas.push_back(info.name);
  }
  const auto scale = [&](const std::string& path) {
    const auto source = copy_without(*native, alphas);
    source->done();
    const Adapter adapter = bind_to(source, shape.config, false, path);
    EXPECT_EQ(adapter.notes().size(), 1u) << path;
    return adapter.branches({Site::Stack::trunk, 0, Site::Part::out}).at(0).scale;
  };
  EXPECT_EQ(scale("minimax_h3_fl2v_turbo_8step_v1.0.safetensors"), 0.0625f);
  EXPECT_EQ(scale("minimax_h3_fl2v_turbo_4step_v1.0_768p.safetensors"), 1.0f);
  EXPECT_EQ(scale("mine.safetensors"), 1.0f);
}

TEST(Adapter, RecipesComeFromNamesAndTensors) {
  const auto source = adapter_source(toy_shape(), AdapterSpelling::comfy);
  const auto recipe = [&](const std::string& path) { return adapter_of(source, path).recipe; };
  EXPECT_FALSE(recipe("style.safetensors"));
  EXPECT_EQ(recipe("h3_turbo_4step_v1.1.safetensors")->video_shift, 6);
  EXPECT_EQ(recipe("h3_turbo_4step_v0.1.safetensors")->video_shift, 12);
  EXPECT_EQ(recipe("turbo-8step/model.safetensors")->steps, 8);
  EXPECT_EQ(recipe("h3_turbo_8step.safetensors")->sampler, "training-euler");
  const auto bare = copy_without(*source);
  bare->add("final_layer.adaln_proj.linear.lora_A.weight", {2, 10}, std::vector<float>(20));
  bare->add("final_layer.adaln_proj.linear.lora_B.weight", {48, 2}, std::vector<float>(96));
  bare->done();
  EXPECT_EQ(adapter_of(bare, "x.safetensors").recipe->sampler, "two-clock");
}

TEST(Adapter, TrainedSparseAndMultiStepAdaptersAreRefusedByName) {
  const auto source = adapter_source(toy_shape(), AdapterSpelling::comfy);
  EXPECT_NE(error_of([&] { adapter_of(source, "minimax_h3_4step_768p_sla_bf16.safetensors"); }).find("SLA adapter"),
            std::string::npos);
  EXPECT_EQ(error_of([&] { adapter_of(source, "slate.safetensors"); }), "");
  const auto with = [&](const std::string& name, std::vector<int64_t> dims, int64_t count) {
    const auto changed = copy_without(*source);
    changed->add(name, std::move(dims), std::vector<float>(static_cast<size_t>(count)));
    changed->done();
    return error_of([&] { adapter_of(changed, "x.safetensors"); });
  };
  EXPECT_NE(with("diffusion_model.blocks.0.attn.to_gate_compress.set_weight", {2, 2}, 4).find("FastH3"),
            std::string::npos);
  EXPECT_NE(with("diffusion_model.final_layer.video_out.diff", {16, 24}, 384).find("PDD"), std::string::npos);
}

TEST(Adapter, MergedRowsAreTheProductOfThePair) {
  const AdapterShape shape = toy_shape();
  const Adapter adapter = bind_to(adapter_source(shape, AdapterSpelling::native), shape.config);
  const std::vector<testing::SyntheticPair> pairs = testing::synthetic_pairs(shape);
  const testing::SyntheticPair& k = pairs.at(1);  // blocks.0, k
  const int64_t inner = shape.config.inner(), hidden = shape.config.hidden, row = 5;
  std::vector<float> rows(static_cast<size_t>(hidden), 1.0f);
  const lora::SiteMerge merge({{&adapter, 0.5f}}, {Site::Stack::trunk, 0, Site::Part::qkv});
  merge.add(inner + row, 1, rows.data());
  for (int64_t c = 0; c < hidden; ++c) {
    double sum = 0;
    for (int64_t r = 0; r < shape.rank; ++r) {
      sum += static_cast<double>(k.up[row * shape.rank + r]) * k.down[r * hidden + c];
    }
    EXPECT_NEAR(rows[c], 1 + 0.5 * (1.0 / 2) * sum, 1e-6) << c;
  }
  EXPECT_TRUE(lora::SiteMerge({{&adapter, 1}}, {Site::Stack::trunk, 0, Site::Part::adaln}).empty());
}

TEST(Adapter, KeysAreTakenApartInEverySpelling) {
  const struct {
    const char *name, *module;
    lora::Piece piece;
  } cases[] = {
      {"base_model.model.dit.blocks.0.mlp.fc1.lora_A.default.weight", "blocks.0.mlp.fc1", lora::Piece::down},
      {"model.diffusion_model.blocks.0.mlp.fc1.lora_up.weight", "blocks.0.mlp.fc1", lora::Piece::up},
      {"transformer.transformer_blocks.1.attn.to_q.lora.down.weight", "transformer_blocks.1.attn.to_q",
       lora::Piece::down},
      {"transformer_blocks.1.attn.to_q_lora.up.weight", "transformer_blocks.1.attn.to_q", lora::Piece::up},
      {"lora_unet_blocks_0_attn_qkv_proj.alpha", "blocks_0_attn_qkv_proj", lora::Piece::alpha},
      {"blocks.0.attn.qkv_proj.hada_w1_a", "blocks.0.attn.qkv_proj", lora::Piece::unsupported},
      {"blocks.0.attn.qkv_proj.bias", "blocks.0.attn.qkv_proj.bias", lora::Piece::unknown},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(lora::parse_key(c.name).module, c.module) << c.name;
    EXPECT_EQ(lora::parse_key(c.name).piece, c.piece) << c.name;
  }
}

}  // namespace
}  // namespace h3
