#include "pipeline/acceleration.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/lora/adapter_files.h"

namespace h3 {
namespace {

class AccelerationTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name) const {
    testing::AdapterShape shape;
    shape.config = testing::config_of(testing::ToySize());
    const auto source = testing::adapter_source(shape, testing::AdapterSpelling::comfy);
    std::vector<TensorToWrite> tensors;
    for (const TensorInfo& info : source->tensors()) tensors.push_back({info.name, info.format, info.dims, info.data});
    const std::string path = folder_ / name;
    write_safetensors(path, tensors, {});
    return path;
  }
  static std::string error_of(const Request& request, const ModelFacts& facts = {}) {
    try {
      settle_acceleration(request, facts);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  TempFolder folder_;
};

TEST_F(AccelerationTest, PresetsSetCacheAttentionAndSteps) {
  Request request;
  EXPECT_EQ(policy_text(settle_acceleration(request, {}).policy), "none");
  EXPECT_FALSE(settle_acceleration(request, {}).lossy());
  request.preset = "balanced";
  const Acceleration balanced = settle_acceleration(request, {});
  EXPECT_EQ(policy_text(balanced.policy), "first-block,threshold=0.08,warmup=3,tail=2,cap=2,worst=0");
  EXPECT_EQ(attention_text(balanced.attention), "sparse:1,dense_steps=10,dense_blocks=2,minimum=24576");
  EXPECT_TRUE(balanced.lossy());
  request.preset = "ultra";
  EXPECT_EQ(settle_acceleration(request, {}).policy.mode, "forecast");
  EXPECT_EQ(preset_steps("ultra"), 15);
  request.cache = "first-block:0.05";
  EXPECT_EQ(settle_acceleration(request, {}).policy.parameters.at("threshold"), 0.05);
}

TEST_F(AccelerationTest, TurboAdaptersBringTheirRecipe) {
  ModelFacts facts;
  facts.turbo_files["4step"] = write("mine.safetensors");
  Request request;
  request.turbo = "4step";
  const Acceleration settled = settle_acceleration(request, facts);
  ASSERT_TRUE(settled.recipe);
  EXPECT_EQ(settled.recipe->steps, 4);
  EXPECT_EQ(settled.recipe->video_shift, 6);
  EXPECT_EQ(settled.adapters.size(), 1u);
  facts.turbo_files["4step"] = write("h3_8step.safetensors");
  EXPECT_NE(error_of(request, facts).find("says 8 steps"), std::string::npos) << error_of(request, facts);
  request.turbo = "3step";
  EXPECT_NE(error_of(request, facts).find("no adapter is called \"3step\", there are 4step"), std::string::npos);
  request.turbo = "none";
  EXPECT_FALSE(settle_acceleration(request, facts).recipe);
}

TEST_F(AccelerationTest, RefusedCombinationsNameBothSides) {
  const std::string path = write("h3_4step.safetensors");
  Request turbo;
  turbo.adapters = {{path, 1}};
  EXPECT_EQ(error_of(turbo), "");
  turbo.cache = "first-block";
  EXPECT_NE(error_of(turbo).find("cache: first-block is not possible with the 4step adapter"), std::string::npos);
  turbo.cache.clear();
  turbo.preset = "balanced";
  EXPECT_NE(error_of(turbo).find("preset: balanced caches steps"), std::string::npos);
  turbo.preset = "turbo";
  EXPECT_EQ(error_of(turbo), "");
  turbo.adapters.clear();
  EXPECT_NE(error_of(turbo).find("preset: turbo needs a turbo adapter"), std::string::npos);
  Request exact;
  exact.preset = "exact";
  exact.cache = "forecast";
  EXPECT_NE(error_of(exact).find("preset exact runs them all"), std::string::npos);
  exact.cache.clear();
  exact.attention = "sparse";
  EXPECT_NE(error_of(exact).find("preset exact does not"), std::string::npos);
  exact.attention = "8bit";
  EXPECT_NE(error_of(exact).find("8bit approximates, preset exact does not"), std::string::npos);
  Request two;
  two.adapters = {{path, 1}, {write("h3_8step.safetensors"), 1}};
  EXPECT_NE(error_of(two).find("distilled for 8 and 4 steps"), std::string::npos) << error_of(two);
}

TEST_F(AccelerationTest, ATraceSaysWhatKindOfCacheItIsOf) {
  Request request;
  request.policy_trace = "run run reuse run";
  EXPECT_EQ(settle_acceleration(request, {}).policy.mode, "first-block");
  request.policy_trace = "run run forecast run";
  EXPECT_EQ(settle_acceleration(request, {}).policy.mode, "forecast");
}

TEST_F(AccelerationTest, AttentionAndAdaptersAreParsed) {
  EXPECT_FALSE(parse_attention("dense").sparse);
  const AttentionOptions sparse = parse_attention("sparse:1.5,minimum=0,dense_steps=1");
  EXPECT_EQ(sparse.tau, 1.5f);
  EXPECT_EQ(sparse.minimum, 0);
  EXPECT_EQ(attention_text(parse_attention(attention_text(sparse))), attention_text(sparse));
  const AttentionOptions eight_bit = parse_attention("8bit"), both = parse_attention("sparse,dense=8bit");
  EXPECT_FALSE(eight_bit.sparse);
  EXPECT_TRUE(both.sparse);
  for (const AttentionOptions& options : {eight_bit, both}) {
    EXPECT_EQ(options.math, AttentionMath::eight_bit);
    EXPECT_EQ(parse_attention(attention_text(options)).math, AttentionMath::eight_bit) << attention_text(options);
  }
  for (const char* text : {"", "dense:1", "sage", "sparse:x", "sparse,tau=1", "sparse,minimum=-1", "8bit:1",
                           "8bit,minimum=0", "sparse,dense=4bit"}) {
    EXPECT_THROW(parse_attention(text), Error) << text;
  }
  EXPECT_EQ(parse_adapter("a.safetensors:0.75"), (AdapterRequest{"a.safetensors", 0.75}));
  EXPECT_EQ(parse_adapter("a.safetensors"), (AdapterRequest{"a.safetensors", 1}));
  EXPECT_EQ(parse_adapter("c:/a.safetensors"), (AdapterRequest{"c:/a.safetensors", 1}));
}

TEST_F(AccelerationTest, EightBitAttentionIsLossyAndRefusedWithTheReason) {
  Request request;
  request.attention = "8bit";
  ModelFacts facts;
  EXPECT_TRUE(settle_acceleration(request, facts).lossy());
  facts.eight_bit_refused = "cpu has no kernel for it";
  try {
    settle_acceleration(request, facts);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "attention: 8bit is not possible, cpu has no kernel for it; give dense");
  }
}

TEST_F(AccelerationTest, RequestsKeepAdaptersInTheirJsonForm) {
  const Json json = Json::parse(R"({"adapters": ["a", {"path": "b", "strength": 0.5}], "turbo": "4step"})", "test");
  const Request request = Request::from_json(json);
  EXPECT_EQ(request.adapters, (std::vector<AdapterRequest>{{"a", 1}, {"b", 0.5}}));
  EXPECT_EQ(Request::from_json(request.to_json()).adapters, request.adapters);
  EXPECT_THROW(Request::from_json(Json::parse(R"({"adapters": [{"strength": 1}]})", "test")), Error);
}

}  // namespace
}  // namespace h3
