#include "store/model_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "tests/support/temp_folder.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

using Names = std::vector<std::string>;

const Names kComfyDit = {"video_patch_proj.weight", "audio_patch_proj.weight", "blocks.0.attn.qkv_proj.weight"};
const Names kDiffusersDit = {"proj_in.weight", "audio_proj_in.weight", "transformer_blocks.0.attn.to_q.weight"};
const Names kComfyVae = {"decoder.transformer_blocks.0.scale1", "decoder.x_embedder.weight", "latents_mean"};
const Names kOfficialVae = {"decoder.transformer_blocks.0.scale1", "decoder.x_embedder.weight"};
const Names kDiffusersVae = {"decoder.transformer_blocks.0.scale1", "decoder.proj_in.weight"};
const Names kAudio = {"dec_in_proj.weight", "decoder.conv_pre.bias", "decoder.conv_pre.weight_g"};
const Names kText = {"model.language_model.embed_tokens.weight",
                     "model.language_model.layers.0.self_attn.q_norm.weight"};
const Names kComfyText = {"model.embed_tokens.weight", "model.layers.0.self_attn.q_norm.weight"};

class ModelFilesTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return root_ / name; }

  // A checkpoint of one-element tensors.
  std::string put(const std::string& name, const Names& names,
                  const std::map<std::string, std::string>& metadata = {}) const {
    static const float zero = 0;
    std::vector<TensorToWrite> tensors;
    for (const std::string& tensor : names) {
      tensors.push_back({tensor, Format::f32, {1, 1}, std::as_bytes(std::span(&zero, 1))});
    }
    fs::create_directories(fs::path(root_ / name).parent_path());
    write_safetensors(path(name), tensors, metadata);
    return path(name);
  }

  std::string text(const std::string& name, const std::string& content) const {
    fs::create_directories(fs::path(root_ / name).parent_path());
    std::ofstream(path(name)) << content;
    return path(name);
  }

  static ModelFiles open(const Names& paths) {
    OpenOptions options;
    options.paths = paths;
    return open_model_files(options);
  }

  static void expect_error(const OpenOptions& options, Code code, std::initializer_list<std::string> parts) {
    try {
      open_model_files(options);
      FAIL() << "opened";
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_EQ(error.code(), code) << what;
      EXPECT_EQ(what.find('\n'), what.npos);
      for (const std::string& part : parts) EXPECT_NE(what.find(part), what.npos) << what << " lacks " << part;
    }
  }
  static void expect_error(const Names& paths, Code code, std::initializer_list<std::string> parts) {
    OpenOptions options;
    options.paths = paths;
    expect_error(options, code, parts);
  }

  void put_diffusers() const {
    put("repo/transformer/diffusion_pytorch_model.safetensors", kDiffusersDit);
    put("repo/vae/diffusion_pytorch_model.safetensors", kDiffusersVae);
    put("repo/audio_vae/diffusion_pytorch_model.safetensors", kAudio);
    put("repo/text_encoder/model.safetensors", kText);
    text("repo/vae/config.json", R"({"_class_name":"AutoencoderKLMiniMaxH3","norm_num_groups":4})");
    text("repo/tokenizer/tokenizer.json", "{\"t\":1}");
    text("repo/scheduler/scheduler_config.json", R"({"shift":12.0})");
    text("repo/audio_scheduler/scheduler_config.json", R"({"shift":3.0})");
    text("repo/modular_model_index.json",
         R"({"_class_name":"MiniMaxH3ModularPipeline","transformer":["a","b",{"subfolder":"transformer"}]})");
  }

  // One partition of the official release, its transformer in two shards.
  void put_official(const std::string& base, const std::string& partition) const {
    put(base + "transformer/model-00001-of-00002.safetensors", {"video_patch_proj.weight"});
    put(base + "transformer/model-00002-of-00002.safetensors", {"audio_patch_proj.weight"});
    text(base + "transformer/model.safetensors.index.json",
         R"({"weight_map":{"video_patch_proj.weight":"model-00001-of-00002.safetensors",
                           "audio_patch_proj.weight":"model-00002-of-00002.safetensors"}})");
    text(base + "transformer/config.json", R"({"_class_name":"MiniMaxH3DiTModel","hidden_size":96})");
    put(base + "video_vae/source/model.safetensors", kOfficialVae);
    text(base + "video_vae/config.json",
         R"({"_class_name":"MiniMaxH3VideoVAE","source_path":"source","latent_channels":24})");
    text(base + "video_vae/source/config.json", R"({"_class_name":"AutoencoderKLLegacy","ch":8,"latent_channels":99})");
    put(base + "audio_vae/model.safetensors", kAudio);
    put(base + "text_encoder/model.safetensors", kText);
    text(base + "tokenizer/vocab.json", "{}");
    text(base + "tokenizer/merges.txt", "#");
    text(base + "model_index.json", R"({"_minimax_h3":{"schema_version":1,"partition":")" + partition +
                                        R"(","sigma_shift_scales":{"video":12.0,"audio":3.0}}})");
  }

  TempFolder root_;
};

TEST_F(ModelFilesTest, LooseFilesGetRolesFromTensors) {
  put("liar_vae.safetensors", kComfyDit);
  put("unet.safetensors", kComfyVae);
  put("a.safetensors", kAudio);
  put("t.safetensors", kComfyText);
  const ModelFiles files =
      open({path("liar_vae.safetensors"), path("unet.safetensors"), path("a.safetensors"), path("t.safetensors")});
  ASSERT_EQ(files.components.size(), 4u);
  const Component* dit = files.find(Role::dit);
  ASSERT_NE(dit, nullptr);
  EXPECT_EQ(dit->origin, path("liar_vae.safetensors"));
  EXPECT_EQ(dit->spelling, Spelling::comfy);
  EXPECT_EQ(dit->qkv_order, QkvOrder::contiguous);
  EXPECT_EQ(dit->qkv_order_from.substr(0, 8), "assumed:");
  EXPECT_EQ(dit->partition, Partition::fl2va);
  EXPECT_EQ(dit->partition_from.substr(0, 8), "assumed:");
  EXPECT_EQ(files.find(Role::video_vae)->spelling, Spelling::comfy);
  EXPECT_EQ(files.find(Role::conditioner)->spelling, Spelling::comfy);
  EXPECT_FALSE(files.tokenizer.has_value());
  EXPECT_TRUE(files.defaults.is_null());
}

TEST_F(ModelFilesTest, PrefixesAreStripped) {
  Names names;
  for (const std::string& name : kComfyDit) names.push_back("model.diffusion_model." + name);
  for (const std::string& name : kComfyVae) names.push_back("vae." + name);
  const ModelFiles files = open({put("all.safetensors", names)});
  ASSERT_EQ(files.components.size(), 2u);
  EXPECT_EQ(files.find(Role::dit)->prefix, "model.diffusion_model.");
  EXPECT_EQ(files.find(Role::video_vae)->prefix, "vae.");
}

TEST_F(ModelFilesTest, FlagsReplaceAssumptionsOnly) {
  OpenOptions options;
  options.paths = {put("x.safetensors", kComfyDit)};
  options.qkv_order = QkvOrder::interleaved;
  options.partition = Partition::ref2va;
  const ModelFiles files = open_model_files(options);
  EXPECT_EQ(files.components[0].qkv_order, QkvOrder::interleaved);
  EXPECT_EQ(files.components[0].qkv_order_from, "--qkv-order");
  EXPECT_EQ(files.components[0].partition, Partition::ref2va);
  EXPECT_EQ(files.find_dit(Partition::fl2va), nullptr);

  options.paths = {put("y.safetensors", kComfyDit, {{"h3.qkv_order", "contiguous"}})};
  expect_error(options, Code::usage, {"--qkv-order interleaved contradicts", "declares 'contiguous'"});
  options.paths = {put("d.safetensors", kDiffusersDit)};
  expect_error(options, Code::usage, {"--qkv-order interleaved contradicts", "separate q, k and v"});
}

TEST_F(ModelFilesTest, HeaderFieldsDeclare) {
  const ModelFiles files =
      open({put("x.safetensors", kComfyDit, {{"h3.qkv_order", "interleaved"}, {"h3.partition", "ref2va"}})});
  EXPECT_EQ(files.components[0].qkv_order, QkvOrder::interleaved);
  EXPECT_EQ(files.components[0].partition, Partition::ref2va);
  EXPECT_EQ(files.components[0].partition_from, "declared by " + path("x.safetensors"));
  expect_error({put("y.safetensors", kComfyDit, {{"h3.partition", "t2va"}})}, Code::data, {"'t2va'", "'fl2va'"});
}

TEST_F(ModelFilesTest, DiffusersRepository) {
  put_diffusers();
  for (const std::string& name : {path("repo"), path("repo/modular_model_index.json")}) {
    const ModelFiles files = open({name});
    ASSERT_EQ(files.components.size(), 4u);
    EXPECT_EQ(files.find(Role::dit)->origin, path("repo/transformer"));
    EXPECT_EQ(files.find(Role::dit)->partition_from, "declared by " + path("repo/modular_model_index.json"));
    EXPECT_EQ(files.find(Role::video_vae)->config.at("norm_num_groups").as_int(), 4);
    ASSERT_TRUE(files.tokenizer.has_value());
    EXPECT_EQ(files.tokenizer->tokenizer_json, "{\"t\":1}");
    EXPECT_EQ(files.defaults.at("video_shift").as_double(), 12.0);
    EXPECT_EQ(files.defaults.at("audio_shift").as_double(), 3.0);
  }
}

TEST_F(ModelFilesTest, OneTransformerMayServeBothPartitions) {
  put_diffusers();
  text("repo/modular_model_index.json",
       R"({"transformer":["a","b",{"subfolder":"transformer"}],"transformer_ref":["a","b",{"subfolder":"transformer"}],
          "h3_defaults":{"frames":5,"width":64}})");
  text("repo/h3.json", R"({"text_encoder_layer":4,"frames":22})");
  const ModelFiles files = open({path("repo")});
  ASSERT_NE(files.find_dit(Partition::ref2va), nullptr);
  EXPECT_EQ(files.find_dit(Partition::ref2va)->source, files.find_dit(Partition::fl2va)->source);
  EXPECT_EQ(files.defaults.at("text_encoder_layer").as_int(), 4);
  EXPECT_EQ(files.defaults.at("frames").as_int(), 22);
  EXPECT_EQ(files.defaults.at("width").as_int(), 64);
}

TEST_F(ModelFilesTest, OfficialRepository) {
  put_official("official/FL2VA/", "fl2va");
  put_official("official/Ref2VA/", "ref2va");
  const ModelFiles files = open({path("official")});
  ASSERT_EQ(files.components.size(), 5u);  // the shared components once
  const Component* dit = files.find_dit(Partition::fl2va);
  ASSERT_NE(dit, nullptr);
  EXPECT_EQ(dit->spelling, Spelling::official);
  EXPECT_EQ(dit->qkv_order, QkvOrder::interleaved);
  EXPECT_EQ(dit->qkv_order_from, "declared by " + path("official/FL2VA/transformer/config.json"));
  EXPECT_EQ(dit->partition_from, "declared by " + path("official/FL2VA/model_index.json"));
  ASSERT_NE(files.find_dit(Partition::ref2va), nullptr);
  EXPECT_EQ(files.find_dit(Partition::ref2va)->origin, path("official/Ref2VA/transformer"));
  const Component* vae = files.find(Role::video_vae);
  EXPECT_EQ(vae->spelling, Spelling::official);
  EXPECT_EQ(vae->config.at("latent_channels").as_int(), 24);  // the outer config wins
  EXPECT_EQ(vae->config.at("ch").as_int(), 8);
  EXPECT_EQ(files.defaults.at("audio_shift").as_double(), 3.0);
  EXPECT_EQ(files.tokenizer->merges_txt, "#");

  OpenOptions options;
  options.paths = {path("official")};
  options.partition = Partition::ref2va;
  const ModelFiles ref = open_model_files(options);
  EXPECT_EQ(ref.find_dit(Partition::fl2va), nullptr);
  EXPECT_NE(ref.find_dit(Partition::ref2va), nullptr);
  options.paths = {path("official/FL2VA")};
  expect_error(options, Code::usage, {"--partition ref2va"});
}

TEST_F(ModelFilesTest, PartsOfARepositoryKeepTheirDeclarations) {
  put_official("official/Ref2VA/", "ref2va");
  const std::string base = path("official/Ref2VA/");
  const ModelFiles files = open({base + "transformer", base + "video_vae", base + "audio_vae/model.safetensors"});
  ASSERT_EQ(files.components.size(), 3u);
  EXPECT_EQ(files.find(Role::dit)->partition, Partition::ref2va);
  EXPECT_EQ(files.find(Role::dit)->qkv_order, QkvOrder::interleaved);
  EXPECT_EQ(files.find(Role::video_vae)->config.at("latent_channels").as_int(), 24);
  EXPECT_FALSE(files.tokenizer.has_value());  // it belongs to a conditioner
  EXPECT_TRUE(open({base + "text_encoder"}).tokenizer.has_value());

  // One shard, or the file of the inner folder, stands for the whole.
  const ModelFiles shard =
      open({base + "transformer/model-00002-of-00002.safetensors",
            base + "transformer/model-00001-of-00002.safetensors", base + "video_vae/source/model.safetensors"});
  ASSERT_EQ(shard.components.size(), 2u);
  EXPECT_EQ(shard.find(Role::dit)->source->tensors().size(), 2u);
  EXPECT_EQ(shard.find(Role::video_vae)->config.at("latent_channels").as_int(), 24);
}

TEST_F(ModelFilesTest, ShardsWithoutConfigAreAssumedOfficial) {
  put_official("o/", "fl2va");
  fs::remove(path("o/transformer/config.json"));
  fs::remove(path("o/model_index.json"));
  const ModelFiles files = open({path("o/transformer")});
  EXPECT_EQ(files.components[0].qkv_order, QkvOrder::interleaved);
  EXPECT_EQ(files.components[0].qkv_order_from.substr(0, 8), "assumed:");
}

TEST_F(ModelFilesTest, ConfigMustFitItsNeighbour) {
  put("mixed/dit.safetensors", kComfyDit);
  put("mixed/vae.safetensors", kComfyVae);
  text("mixed/config.json", R"({"_class_name":"MiniMaxH3DiTModel"})");
  const ModelFiles files = open({path("mixed")});
  EXPECT_EQ(files.find(Role::dit)->qkv_order, QkvOrder::interleaved);
  EXPECT_TRUE(files.find(Role::video_vae)->config.is_null());
}

TEST_F(ModelFilesTest, TheSameRoleTwiceNamesBoth) {
  put("a.safetensors", kComfyDit);
  put("b.safetensors", kDiffusersDit);
  expect_error({path("a.safetensors"), path("b.safetensors")}, Code::usage,
               {"transformer", path("a.safetensors"), path("b.safetensors")});
  EXPECT_EQ(open({path("a.safetensors"), path("a.safetensors")}).components.size(), 1u);
  put("r.safetensors", kComfyDit, {{"h3.partition", "ref2va"}});
  EXPECT_EQ(open({path("a.safetensors"), path("r.safetensors")}).components.size(), 2u);
}

TEST_F(ModelFilesTest, WhatIsNotAModelIsRefused) {
  expect_error({path("absent")}, Code::io, {path("absent"), "no such file"});
  expect_error({put("u.safetensors", {"foo.weight"})}, Code::data, {"not a part of this model", "foo.weight"});
  fs::create_directories(root_ / "empty");
  expect_error({path("empty")}, Code::data, {"no model in this folder"});
  put("odd/u.safetensors", {"foo.weight"});
  expect_error({path("odd")}, Code::data, {"no model in this folder"});
  expect_error({text("x.safetensors", "not a checkpoint at all")}, Code::data, {"x.safetensors"});
  put_diffusers();
  text("repo/modular_model_index.json", R"({"vae":["a","b",{"subfolder":"../../etc"}]})");
  expect_error({path("repo")}, Code::data, {"'../../etc'"});
  text("repo/modular_model_index.json", "{");
  expect_error({path("repo")}, Code::data, {"modular_model_index.json", "invalid JSON"});
}

TEST_F(ModelFilesTest, MultiStepHeadsAreRefusedByName) {
  static const std::vector<float> zeros(64);
  const auto bytes = [](size_t n) { return std::as_bytes(std::span(zeros.data(), n)); };
  write_safetensors(path("pdd.safetensors"),
                    {{"video_patch_proj.weight", Format::f32, {2, 4}, bytes(8)},
                     {"audio_patch_proj.weight", Format::f32, {2, 2}, bytes(4)},
                     {"final_layer.video_out.weight", Format::f32, {32, 2}, bytes(64)}},
                    {});
  expect_error({path("pdd.safetensors")}, Code::data, {"final_layer.video_out.weight", "32 rows", "PDD"});
  OpenOptions options;
  options.paths = {path("pdd.safetensors"), put("u.safetensors", {"foo.weight"})};
  options.inspect = true;
  const ModelFiles files = open_model_files(options);
  ASSERT_EQ(files.components.size(), 2u);
  EXPECT_NE(files.components[0].unsupported, "");
  EXPECT_EQ(files.components[1].role, Role::unknown);
}

TEST_F(ModelFilesTest, AdaptersCountWhenNamed) {
  put("dir/dit.safetensors", kComfyDit);
  put("dir/lora.safetensors", {"diffusion_model.blocks.0.mlp.fc1.lora_A.weight"});
  EXPECT_EQ(open({path("dir")}).components.size(), 1u);
  EXPECT_EQ(open({path("dir"), path("dir/lora.safetensors")}).components.size(), 2u);
}

TEST_F(ModelFilesTest, TokenizerIsFoundOrNamed) {
  put("t/model.safetensors", kComfyText);
  EXPECT_FALSE(open({path("t/model.safetensors")}).tokenizer.has_value());
  text("tok/tokenizer.json", "{}");
  text("tok/tokenizer_config.json", "{\"c\":1}");
  OpenOptions options;
  options.paths = {path("t/model.safetensors")};
  for (const std::string& name : {path("tok"), path("tok/tokenizer.json")}) {
    options.tokenizer = name;
    EXPECT_EQ(open_model_files(options).tokenizer->tokenizer_config_json, "{\"c\":1}");
  }
  options.tokenizer = path("t");
  expect_error(options, Code::data, {"--tokenizer", path("t")});
  options.tokenizer = path("nowhere/tokenizer.json");
  expect_error(options, Code::io, {path("nowhere/tokenizer.json")});
  text("t/vocab.json", "{}");
  text("t/merges.txt", "m");
  EXPECT_EQ(open({path("t/model.safetensors")}).tokenizer->merges_txt, "m");
}

}  // namespace
}  // namespace h3
