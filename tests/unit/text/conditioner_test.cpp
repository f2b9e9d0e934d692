// The conditioner on a checkpoint made here from its own weight tables: spellings, the tap, errors, memory. What the
// numbers should be is for h3-parity.
#include "model/text/conditioner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <list>
#include <random>

#include "backends/list.h"
#include "base/compare.h"
#include "base/context.h"
#include "base/error.h"
#include "codec/scalar.h"
#include "model/text/presentation.h"
#include "model/text/weights.h"

namespace h3 {
namespace {

constexpr const char* kConfig = R"({
  "text_config": {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": {"mrope_section": [4, 2, 2]}},
  "vision_config": {"num_heads": 2, "deepstack_visual_indexes": [0, 2]}})";

constexpr int kLayers = 5, kTap = 4;

// Tensors with values that depend on the canonical name only.
class MadeSource final : public TensorSource {
 public:
  void add(const std::string& canonical, const std::string& name, std::vector<int64_t> dims) {
    int64_t count = 1;
    for (const int64_t d : dims) count *= d;
    std::mt19937 random(static_cast<unsigned>(std::hash<std::string>{}(canonical)));
    std::vector<uint16_t>& values = storage_.emplace_back();
    const bool norm = dims.size() == 1 && canonical.ends_with("weight");
    const float scale =
        dims.size() == 1 ? 0.1f : 1.0f / std::sqrt(static_cast<float>(count) / static_cast<float>(dims[0]));
    for (int64_t i = 0; i < count; ++i) {
      const float u = static_cast<float>(random() >> 8) / static_cast<float>(1 << 23) - 1.0f;
      values.push_back(f32_to_bf16(norm ? 1 + 0.1f * u : scale * u));
    }
    tensors_.push_back(
        {name, Format::bf16, std::move(dims), std::as_bytes(std::span<const uint16_t>(values)), "made", 0});
  }
  // A tensor that must never be read.
  void add_forbidden(const std::string& name) { tensors_.push_back({name, Format::bf16, {3}, {}, "made", 0}); }
  void remove(const std::string& name) {
    std::erase_if(tensors_, [&](const TensorInfo& info) { return info.name == name; });
  }
  TensorInfo& at(const std::string& name) {
    return *std::find_if(tensors_.begin(), tensors_.end(), [&](const TensorInfo& i) { return i.name == name; });
  }
  void done() { index_tensors(); }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  const std::vector<std::string>& files() const override { return files_; }
  std::string id() const override { return "made"; }

 private:
  std::list<std::vector<uint16_t>> storage_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::string> files_;
};

struct Spelled {
  const char* prefix;
  const char* language;
  const char* vision;
  bool compact;
};
constexpr Spelled kHuggingFace{"", "model.language_model.", "model.visual.", false};
constexpr Spelled kComfy{"", "model.", "visual.", false};
constexpr Spelled kCmf{"", "te.", "vis.", true};
constexpr Spelled kPrefixed{"text_encoders.", "model.", "visual.", false};

text::LanguageDims language_dims() {
  text::LanguageDims dims;
  dims.hidden = 24, dims.layers = kLayers, dims.heads = 4, dims.kv_heads = 2, dims.head_dim = 16, dims.ffn = 40;
  dims.vocab = 320;
  return dims;
}

text::VisionDims vision_dims() {
  text::VisionDims dims;
  dims.hidden = 16, dims.depth = 3, dims.heads = 2, dims.ffn = 20, dims.out = 24, dims.side = 6;
  return dims;
}

template <typename Rows>
void add_rows(MadeSource& source, const Rows& rows, const std::string& canonical, const std::string& prefix,
              const text::Lengths& lengths) {
  for (const auto& row : rows) {
    std::vector<int64_t> dims;
    for (const text::Dim dim : row.dims) {
      if (dim != text::Dim::none) dims.push_back(lengths(dim));
    }
    source.add(canonical + row.name, prefix + row.name, dims);
  }
}

std::shared_ptr<MadeSource> make_source(const Spelled& spelled, bool vision = true,
                                        const std::function<void(MadeSource&)>& edit = {}) {
  auto source = std::make_shared<MadeSource>();
  const text::LanguageDims language = language_dims();
  const text::VisionDims tower = vision_dims();
  const std::string root = std::string(spelled.prefix) + spelled.language;
  const std::string eye = std::string(spelled.prefix) + spelled.vision;
  text::Lengths lengths{&language, &tower, tower.hidden};
  add_rows(*source, text::kEmbed, "te.", root, lengths);
  for (int l = 0; l < kTap; ++l) {
    const std::string layer = "layers." + std::to_string(l) + ".";
    add_rows(*source, text::kLayer, "te." + layer, root + layer, lengths);
  }
  source->add_forbidden(root + "layers." + std::to_string(kTap) + ".input_layernorm.weight");
  source->add_forbidden(root + "norm.weight");
  source->add_forbidden(std::string(spelled.prefix) + "lm_head.weight");
  if (vision) {
    source->add("patch", eye + (spelled.compact ? "patch_embed.weight" : "patch_embed.proj.weight"),
                spelled.compact ? std::vector<int64_t>{16, 1536} : std::vector<int64_t>{16, 3, 2, 16, 16});
    source->add("patch.bias", eye + (spelled.compact ? "patch_embed.bias" : "patch_embed.proj.bias"), {16});
    source->add("positions", eye + "pos_embed.weight", {36, 16});
    for (int i = 0; i < 3; ++i) {
      const std::string block = "blocks." + std::to_string(i) + ".";
      add_rows(*source, text::kBlock, "vis." + block, eye + block, lengths);
    }
    add_rows(*source, text::kMerger, "vis.merger.", eye + "merger.", lengths);
    lengths.norm = 4 * tower.hidden;
    for (int k = 0; k < 2; ++k) {
      const std::string merger = (spelled.compact ? "deepstack." : "deepstack_merger_list.") + std::to_string(k) + ".";
      add_rows(*source, text::kMerger, "vis.deepstack." + std::to_string(k) + ".", eye + merger, lengths);
    }
  }
  if (edit) edit(*source);
  source->done();
  return source;
}

ModelFiles make_files(std::shared_ptr<MadeSource> source, const Spelled& spelled) {
  ModelFiles files;
  Component component;
  component.role = Role::conditioner;
  component.source = std::move(source);
  component.config = Json::parse(kConfig, "config.json");
  component.origin = "made";
  component.prefix = spelled.prefix;
  files.components.push_back(std::move(component));
  files.tokenizer.emplace();
  files.tokenizer->merges_txt = "a b\n";
  files.tokenizer->tokenizer_config_json = R"({"added_tokens_decoder": {
    "300": {"content": "<|vision_start|>"}, "301": {"content": "<|vision_end|>"},
    "302": {"content": "<|image_pad|>"}, "303": {"content": "<|video_pad|>"}}})";
  return files;
}

std::vector<PromptMedia> some_media() {
  std::mt19937 random(7);
  const auto picture = [&random](int width, int height) {
    Picture p{width, height, {}};
    for (int i = 0; i < width * height * 3; ++i) p.rgb.push_back(static_cast<uint8_t>(random()));
    return p;
  };
  PromptMedia clip{PromptMedia::Kind::video, {}, true};
  for (int t = 0; t < 25; ++t) clip.frames.push_back(picture(64, 96));
  return {{PromptMedia::Kind::image, {picture(256, 288)}, false}, clip};
}

struct ConditionerTest : ::testing::Test {
  ThreadPool pool{2};
  Log log;
  Context context{pool, log};
  std::unique_ptr<Ops> ops = make_backend("ref", context);
  Control control;

  std::unique_ptr<Conditioner> load(const ModelFiles& files, ConditionerOptions options = {.tap = kTap}) {
    return load_conditioner(*ops, files, options);
  }
  std::string error_of(const ModelFiles& files, Code code, ConditionerOptions options = {.tap = kTap}) {
    try {
      load(files, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    return "";
  }
};

TEST_F(ConditionerTest, EverySpellingGivesTheSameRows) {
  std::vector<float> first;
  for (const Spelled& spelled : {kHuggingFace, kComfy, kCmf, kPrefixed}) {
    const std::unique_ptr<Conditioner> conditioner = load(make_files(make_source(spelled), spelled));
    const Conditioning got = conditioner->encode("hello ab", some_media(), control);
    EXPECT_EQ(got.rows, static_cast<int64_t>(got.ids.size()));
    EXPECT_EQ(got.width, 24);
    ASSERT_EQ(got.embeds.size(), static_cast<size_t>(got.rows * 24));
    EXPECT_EQ(got.tags.size(), got.ids.size());
    if (first.empty()) first = got.embeds;
    EXPECT_EQ(got.embeds, first) << spelled.language;
  }
}

TEST_F(ConditionerTest, StreamedLayersGiveTheSameRows) {
  const ModelFiles files = make_files(make_source(kComfy), kComfy);
  const Conditioning expected = load(files)->encode("hello ab", some_media(), control);
  const std::unique_ptr<Conditioner> streamed = load(files, {.tap = kTap, .resident_layers = 0});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(streamed->encode("hello ab", some_media(), control).embeds, expected.embeds);
}

TEST_F(ConditionerTest, ActivationsInBf16StayClose) {
  const ModelFiles files = make_files(make_source(kComfy), kComfy);
  const Conditioning wide = load(files)->encode("hello ab", some_media(), control);
  const Conditioning narrow =
      load(files, {.compute = Compute::bf16, .tap = kTap})->encode("hello ab", some_media(), control);
  const Comparison c = compare_values(narrow.embeds, wide.embeds, {.rel_l2 = 3e-2});
  EXPECT_TRUE(c.passed) << c.failure;
  EXPECT_GT(c.rel_l2, 1e-4);
}

TEST_F(ConditionerTest, ThreadsDoNotChangeABit) {
  const ModelFiles files = make_files(make_source(kComfy), kComfy);
  const Conditioning two = load(files)->encode("hello ab", some_media(), control);
  for (const int threads : {1, 3}) {
    ThreadPool other(threads);
    Context with{other, log};
    const std::unique_ptr<Ops> own = make_backend("ref", with);
    const Conditioning got = load_conditioner(*own, files, {.tap = kTap})->encode("hello ab", some_media(), control);
    EXPECT_EQ(got.embeds, two.embeds) << threads;
  }
}

TEST_F(ConditionerTest, ReleasesItsMemory) {
  const ModelFiles files = make_files(make_source(kComfy), kComfy);
  const int64_t before = ops->device().allocated_bytes();
  {
    const std::unique_ptr<Conditioner> conditioner = load(files);
    const int64_t loaded = ops->device().allocated_bytes();
    EXPECT_GT(loaded, before);
    conditioner->encode("hello", some_media(), control);
    EXPECT_EQ(ops->device().allocated_bytes(), loaded);
  }
  EXPECT_EQ(ops->device().allocated_bytes(), before);
}

TEST_F(ConditionerTest, AllocatesPerRequestNotPerLayer) {
  const ModelFiles files = make_files(make_source(kComfy), kComfy);
  const auto allocations = [&](int tap) {
    const std::unique_ptr<Conditioner> conditioner = load(files, {.tap = tap});
    const int64_t before = ops->device().allocations();
    conditioner->encode("hello", some_media(), control);
    return ops->device().allocations() - before;
  };
  EXPECT_EQ(allocations(1), allocations(kTap));
}

TEST_F(ConditionerTest, StopsWithinALayer) {
  const std::unique_ptr<Conditioner> conditioner = load(make_files(make_source(kComfy), kComfy));
  Control stopping;
  int reports = 0;
  stopping.on_progress = [&](const Progress& progress) {
    EXPECT_STREQ(progress.stage, "encode text");
    if (++reports == 2) stopping.request_stop();
  };
  EXPECT_THROW(conditioner->encode("hello", {}, stopping), Error);
  EXPECT_EQ(reports, 2);
}

TEST_F(ConditionerTest, VisionIsOptional) {
  const ModelFiles files = make_files(make_source(kComfy), kComfy);
  const Conditioning with = load(files)->encode("hello", {}, control);
  const std::unique_ptr<Conditioner> without = load(files, {.tap = kTap, .vision = false});
  EXPECT_FALSE(without->has_vision());
  EXPECT_EQ(without->encode("hello", {}, control).embeds, with.embeds);
  const ModelFiles text_only = make_files(make_source(kComfy, false), kComfy);
  const std::unique_ptr<Conditioner> conditioner = load(text_only);
  try {
    conditioner->encode("hello", some_media(), control);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::usage);
    EXPECT_NE(std::string(error.what()).find("vision tower"), std::string::npos);
  }
}

TEST_F(ConditionerTest, TheTapIsAskedForOrStated) {
  ModelFiles files = make_files(make_source(kComfy), kComfy);
  EXPECT_NE(error_of(files, Code::usage, {}).find("--te-layers 1..5"), std::string::npos);
  EXPECT_NE(error_of(files, Code::usage, {.tap = 6}).find("1..5"), std::string::npos);
  files.defaults = Json::parse(R"({"text_encoder_layer": 3})", "h3.json");
  EXPECT_EQ(load(files, {})->tap(), 3);
  EXPECT_EQ(load(files, {.tap = 2})->tap(), 2);
}

TEST_F(ConditionerTest, OneErrorListsEveryTensor) {
  const std::shared_ptr<MadeSource> source = make_source(kComfy, true, [](MadeSource& made) {
    made.remove("model.layers.1.self_attn.k_norm.weight");
    made.remove("visual.merger.norm.bias");
    made.at("model.layers.2.mlp.down_proj.weight").dims = {40, 24};
    made.at("model.layers.3.mlp.up_proj.weight").name = "model.layers.3.mlp.upper_proj.weight";
  });
  const std::string text = error_of(make_files(source, kComfy), Code::data);
  for (const char* part : {"layers.1.self_attn.k_norm.weight", "merger.norm.bias", "down_proj.weight is [40, 24]",
                           "layers.3.mlp.up_proj.weight [40, 24]", "upper_proj"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " not in: " << text;
  }
}

TEST_F(ConditionerTest, RefusesWhatDoesNotBelongTogether) {
  ModelFiles files = make_files(make_source(kComfy), kComfy);
  files.tokenizer.reset();
  EXPECT_NE(error_of(files, Code::usage).find("--tokenizer"), std::string::npos);
  files = make_files(make_source(kComfy), kComfy);
  files.components[0].config.set("image_token_id", 151655);
  EXPECT_NE(error_of(files, Code::data).find("151655"), std::string::npos);
  files = make_files(make_source(kComfy), kComfy);
  files.components[0].config.set("vision_config", Json::object());
  EXPECT_NE(error_of(files, Code::data).find("deepstack_visual_indexes"), std::string::npos);
  files = make_files(make_source(kComfy), kComfy);
  files.tokenizer->tokenizer_config_json = R"({"added_tokens_decoder": {"999": {"content": "<|x|>"}}})";
  const std::unique_ptr<Conditioner> conditioner = load(files);
  EXPECT_THROW(conditioner->encode("a<|x|>", {}, control), Error);
  EXPECT_THROW(conditioner->encode("", {}, control), Error);
  EXPECT_NE(error_of({}, Code::usage).find("no prompt conditioner"), std::string::npos);
}

TEST_F(ConditionerTest, TheDemoModelConditions) {
  const ModelFiles files = open_model_files({});
  const std::unique_ptr<Conditioner> conditioner = load(files, {});
  EXPECT_EQ(conditioner->tap(), 4);
  EXPECT_TRUE(conditioner->has_vision());
  const Conditioning got = conditioner->encode("A red ball bounces.", {}, control);
  EXPECT_EQ(conditioner->tokenizer().decode(got.ids), "A red ball bounces.");
}

}  // namespace
}  // namespace h3
