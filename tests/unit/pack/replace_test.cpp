// The prompt encoder of a CMF replaced by a small one with its ClipProj, and back.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "apps/pack/pack.h"
#include "backends/list.h"
#include "base/context.h"
#include "base/error.h"
#include "base/file_map.h"
#include "model/text/conditioner.h"
#include "model/text/weights.h"
#include "store/cmf.h"
#include "store/embedded.h"
#include "tests/support/put_file.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/dit/toy_checkpoint.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;
using testing::MemorySource;
using testing::put_file;

constexpr int64_t kHidden = 24, kOut = 128, kResidual = 20, kVocab = 768;  // kOut: what the demo's transformer takes
constexpr int kLayers = 5, kTap = 3;
constexpr const char* kConfig = R"({"model_type": "qwen3_vl", "text_config":
  {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": {"mrope_section": [4, 2, 2]}}})";
const char* const kPrompt = "A red ball bounces.";

std::vector<float> values(int64_t count, float centre, float scale, uint64_t seed) {
  std::vector<float> out = TorchGenerator(seed).randn(count);
  for (float& v : out) v = centre + scale * v;
  return out;
}

std::shared_ptr<MemorySource> small_encoder() {
  text::LanguageDims dims;
  dims.hidden = kHidden, dims.layers = kLayers, dims.heads = 4, dims.kv_heads = 2, dims.head_dim = 16, dims.ffn = 40;
  dims.vocab = kVocab;
  const text::Lengths lengths{.language = &dims};
  auto source = std::make_shared<MemorySource>();
  uint64_t seed = 100;
  const auto add = [&](const std::string& prefix, const auto& rows) {
    for (const auto& row : rows) {
      std::vector<int64_t> shape;
      int64_t count = 1;
      for (const text::Dim dim : row.dims) {
        if (dim != text::Dim::none) shape.push_back(lengths(dim));
      }
      for (const int64_t n : shape) count *= n;
      const bool vector = shape.size() == 1;
      source->add(prefix + row.name, shape, values(count, vector ? 1 : 0, vector ? 0.1f : 0.2f, ++seed));
    }
  };
  add("model.", text::kEmbed);
  for (int l = 0; l < kLayers; ++l) add("model.layers." + std::to_string(l) + ".", text::kLayer);
  source->done();
  return source;
}

std::shared_ptr<MemorySource> clip_proj() {
  auto source = std::make_shared<MemorySource>();
  source->add("W", {kHidden, kOut}, values(kHidden * kOut, 0, 0.2f, 1));
  source->add("mean_in", {kHidden}, values(kHidden, 0, 0.5f, 2));
  source->add("std_in", {kHidden}, std::vector<float>(kHidden, 1.25f));
  source->add("mean_out", {kOut}, values(kOut, 0, 0.5f, 3));
  source->add("std_out", {kOut}, values(kOut, 1, 0.1f, 4));
  source->add("sink_out", {kOut}, values(kOut, 0, 3, 5));
  source->add("mlp.0.weight", {kResidual, kHidden}, values(kResidual * kHidden, 0, 0.3f, 6));
  source->add("mlp.0.bias", {kResidual}, values(kResidual, 0, 0.3f, 7));
  source->add("mlp.2.weight", {kOut, kResidual}, values(kOut * kResidual, 0, 0.3f, 8));
  source->add("mlp.2.bias", {kOut}, values(kOut, 0, 0.3f, 9));
  source->done();
  return source;
}

// Spec formats G, in double.
std::vector<double> projected(const std::vector<float>& hidden, const MemorySource& clip) {
  const int64_t rows = static_cast<int64_t>(hidden.size()) / kHidden;
  const auto tensor = [&](const char* name) { return clip.values(name); };
  const std::vector<float> w = tensor("W"), mi = tensor("mean_in"), si = tensor("std_in"), mo = tensor("mean_out"),
                           so = tensor("std_out"), sink = tensor("sink_out"), w0 = tensor("mlp.0.weight"),
                           b0 = tensor("mlp.0.bias"), w2 = tensor("mlp.2.weight"), b2 = tensor("mlp.2.bias");
  std::vector<double> out;
  for (int64_t r = 0; r < rows; ++r) {
    double x[kHidden], h[kResidual];
    for (int64_t i = 0; i < kHidden; ++i) x[i] = (double{hidden[r * kHidden + i]} - mi[i]) / si[i];
    for (int64_t k = 0; k < kResidual; ++k) {
      h[k] = b0[k];
      for (int64_t i = 0; i < kHidden; ++i) h[k] += double{w0[k * kHidden + i]} * x[i];
      h[k] *= 0.5 * (1 + std::erf(h[k] / std::sqrt(2.0)));
    }
    for (int64_t o = 0; o < kOut; ++o) {
      double y = b2[o];
      for (int64_t i = 0; i < kHidden; ++i) y += x[i] * w[i * kOut + o];
      for (int64_t k = 0; k < kResidual; ++k) y += double{w2[o * kResidual + k]} * h[k];
      out.push_back(r == 0 ? sink[o] : y * so[o] + mo[o]);
    }
  }
  return out;
}

class PackReplace : public ::testing::Test {
 protected:
  void SetUp() override {
    if (embedded_demo().empty()) GTEST_SKIP() << "built without the demo model";
    std::filesystem::create_directories(root_ / "small");
    // Its own tokenizer, told apart by a space at its end.
    tokenizer_ = read_file(std::string(H3_SOURCE_DIR) + "/tests/data/golden/toy/tokenizer/tokenizer.json") + " ";
    write("small/tokenizer.json", tokenizer_);
    write("small/config.json", kConfig);
    encoder_ = put_file(*small_encoder(), path("small/encoder.safetensors"));
    clip_ = put_file(*clip_proj(), path("clip.safetensors"), {{"tap", std::to_string(kTap)}});
  }
  std::string path(const std::string& name) const { return root_ / name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
  }

  std::string pack(const std::vector<std::string>& inputs, const std::string& quant, const std::string& output,
                   int te_layers = 0) {
    PackOptions options;
    options.inputs.paths = inputs;
    options.output = path(output);
    options.policy = QuantPolicy::parse(quant);
    options.te_layers = te_layers;
    pack_model(options, pool_, log_, Control());
    return options.output;
  }
  Conditioning encode(const std::vector<std::string>& models, int tap = 0) {
    OpenOptions open;
    open.paths = models;
    Context context{pool_, log_};
    const std::unique_ptr<Ops> ops = make_backend("ref", context);
    return load_conditioner(*ops, open_model_files(open), {.tap = tap})->encode(kPrompt, {}, Control());
  }

  TempFolder root_;
  std::string tokenizer_, encoder_, clip_;
  ThreadPool pool_{2};
  Log log_;
};

TEST_F(PackReplace, ASmallEncoderWithItsClipProjTakesThePlaceOfTheOld) {
  const std::string base = pack({}, "q4tp", "base.cmf");
  const CmfFile joined(pack({base, encoder_, clip_}, "te=f32", "joined.cmf"));

  // Every tensor under te. is of the new encoder; the old tower is gone, the rest is untouched.
  const CmfFile old(base);
  int64_t language = 0;
  for (const CmfTensor& tensor : joined.tensors()) {
    EXPECT_FALSE(tensor.name.starts_with("vis.")) << tensor.name;
    const CmfTensor* before = old.find(tensor.name);
    if (tensor.name.starts_with("te.")) {
      language += tensor.name.starts_with("te.proj.") || tensor.dtype == kCmfRaw ? 0 : 1;
      if (before != nullptr) EXPECT_NE(before->hash, tensor.hash) << tensor.name;
    } else {
      ASSERT_NE(before, nullptr) << tensor.name;
      EXPECT_EQ(before->hash, tensor.hash) << tensor.name;
    }
  }
  EXPECT_EQ(language, 1 + 11 * kTap);
  EXPECT_EQ(joined.config("te.config_json").at("num_hidden_layers").as_int(), kTap);
  EXPECT_EQ(joined.config("te.config_json").at("hidden_size").as_int(), kHidden);
  EXPECT_TRUE(joined.config("vis.config_json").is_null());
  EXPECT_EQ(joined.header().at("arch").at("hidden_size").as_int(), kHidden);
  EXPECT_EQ(joined.text_of(joined.envelope().vocab), tokenizer_);

  // The map is kept to the bit.
  const auto clip = clip_proj();
  for (const TensorInfo& info : clip->tensors()) {
    const CmfTensor* kept = joined.find("te.proj." + info.name);
    ASSERT_NE(kept, nullptr) << info.name;
    EXPECT_EQ(kept->dtype, 0) << info.name;
    EXPECT_EQ(kept->dims, info.dims) << info.name;
    const std::span<const std::byte> bytes = joined.payload(*kept);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), info.data.begin(), info.data.end())) << info.name;
  }

  // And it gives the rows of the formula; the first is the sink.
  const Conditioning hidden = encode({encoder_}, kTap);
  ASSERT_EQ(hidden.width, kHidden);
  const std::vector<double> expected = projected(hidden.embeds, *clip);
  for (const std::vector<std::string>& models : {std::vector<std::string>{joined.path()}, {encoder_, clip_}}) {
    const Conditioning found = encode(models);
    ASSERT_EQ(found.width, kOut);
    ASSERT_EQ(found.ids, hidden.ids);
    ASSERT_EQ(found.embeds.size(), expected.size());
    EXPECT_GT(found.rows, 3);
    for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(found.embeds[i], expected[i], 2e-4) << i;
    const std::vector<float> sink = clip->values("sink_out");
    EXPECT_TRUE(std::equal(sink.begin(), sink.end(), found.embeds.begin()));
  }
}

TEST_F(PackReplace, AClipProjGoesWithItsEncoder) {
  const std::string base = pack({}, "q4tp", "base.cmf");
  const std::string joined = pack({base, encoder_, clip_}, "", "joined.cmf");
  const CmfFile back(pack({joined, base}, "", "back.cmf"));
  for (const CmfTensor& tensor : back.tensors()) EXPECT_FALSE(tensor.name.starts_with("te.proj.")) << tensor.name;
  EXPECT_EQ(back.find("te.embed_tokens.weight")->dims, (std::vector<int64_t>{kVocab, 128}));
  EXPECT_NE(back.find("vis.pos_embed.weight"), nullptr);
}

TEST_F(PackReplace, AClipProjMustFitItsEncoder) {
  const std::string base = pack({}, "q4tp", "base.cmf");
  try {
    pack({base, clip_}, "", "wrong.cmf");  // the demo's own encoder has 128 values, the map takes 24
    FAIL() << "packed";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("clip.safetensors"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("24"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(fs::exists(path("wrong.cmf")));
}

TEST_F(PackReplace, TeLayersKeepsTheLayersThatAreRead) {
  const CmfFile file(pack({}, "f32", "two.cmf", 2));
  EXPECT_NE(file.find("te.layers.1.mlp.up_proj.weight"), nullptr);
  EXPECT_EQ(file.find("te.layers.2.mlp.up_proj.weight"), nullptr);
  EXPECT_EQ(file.config("te.config_json").at("num_hidden_layers").as_int(), 2);
  EXPECT_EQ(encode({file.path()}).embeds, encode({}, 2).embeds);
}

// One layer's matrix with the factors of AWQ, the others plain: refused at load and at pack.
class MixedEncoder final : public TensorSource {
 public:
  MixedEncoder() : plain_(small_encoder()), tensors_(plain_->tensors()) {
    for (TensorInfo& info : tensors_) {
      info.file = "mixed.safetensors";
      info.offset = 64;
      if (info.name != "model.layers.1.self_attn.o_proj.weight") continue;
      factors_.assign(static_cast<size_t>(info.dims[1]), 1.0f);
      info.pre_scale = std::as_bytes(std::span<const float>(factors_));
    }
    index_tensors();
  }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  const std::vector<std::string>& files() const override { return files_; }
  std::string id() const override { return "mixed"; }

 private:
  std::shared_ptr<MemorySource> plain_;
  std::vector<TensorInfo> tensors_;
  std::vector<float> factors_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::string> files_{"mixed.safetensors"};
};

TEST_F(PackReplace, NormsOfAnAwqEncoderWithOtherWeightsAreRefused) {
  OpenOptions open;
  open.paths = {encoder_};
  ModelFiles files = open_model_files(open);
  files.components[0].source = std::make_shared<MixedEncoder>();
  files.components[0].origin = "mixed.safetensors";
  Context context{pool_, log_};
  const std::unique_ptr<Ops> ops = make_backend("ref", context);
  PackOptions options;
  options.output = path("mixed.cmf");
  options.te_layers = kTap;
  const std::function<void()> ways[] = {
      [&] { load_conditioner(*ops, files, {.tap = kTap}); },
      [&] { pack_files(files, options, pool_, log_, Control()); },
  };
  for (const std::function<void()>& way : ways) {
    try {
      way();
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::data);
      for (const char* part : {"mixed.safetensors", "tensor 'model.layers.0.self_attn.o_proj.weight' at offset 64",
                               "norms of an AWQ encoder with another encoder's weights"}) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
    }
  }
  EXPECT_FALSE(fs::exists(path("mixed.cmf")));
}

}  // namespace
}  // namespace h3
