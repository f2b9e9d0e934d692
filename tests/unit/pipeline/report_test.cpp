#include "pipeline/report.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace h3 {
namespace {

Recipe sample() {
  Recipe recipe;
  recipe.request.prompt = "a star \"shines\"";
  recipe.request.seed = Seed{7, false};
  recipe.request.first_frame = "a.png";
  recipe.request.output = "clip.mp4";
  recipe.request.dumps = {{"text", "t.safetensors"}};
  recipe.inputs = {{"first_frame", "a.png", 0x0123456789abcdefu}};
  recipe.models = {"toy"};
  recipe.model_ids = {{"transformer", "00ff", "toy/transformer"}};
  recipe.tap = 4;
  recipe.device = "cpu";
  return recipe;
}

TEST(Recipe, RoundTripsWithoutOutputNames) {
  const std::string text = sample().to_json().dump();
  EXPECT_EQ(text.find("clip.mp4"), std::string::npos);
  EXPECT_EQ(text.find("t.safetensors"), std::string::npos);
  const Recipe again = Recipe::parse(text, "clip.mp4");
  EXPECT_EQ(again.to_json().dump(), text);
  EXPECT_EQ(again.inputs[0].hash, 0x0123456789abcdefu);
  EXPECT_EQ(again.tap, 4);
}

TEST(Recipe, SyntheticWeightsInBothSpellings) {
  Recipe recipe = sample();
  recipe.synthetic_layers = 2;
  recipe.synthetic_format = "fp8";
  EXPECT_EQ(Recipe::parse(recipe.to_json().dump(), "clip.mp4").synthetic_format, "fp8");
  recipe.synthetic_format.clear();
  Json old = recipe.to_json();
  EXPECT_EQ(Recipe::parse(old.dump(), "clip.mp4").synthetic_format, "");
  old.set("synthetic_q4tp", true);
  EXPECT_EQ(Recipe::parse(old.dump(), "clip.mp4").synthetic_format, "q4tp");
}

TEST(Recipe, RefusesForeignMetadata) {
  const auto refused = [](const std::string& text) -> std::string {
    try {
      Recipe::parse(text, "clip.mp4");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::data);
      return error.what();
    }
    return "(accepted)";
  };
  EXPECT_NE(refused("made with love").find("clip.mp4: no usable settings inside"), std::string::npos);
  EXPECT_NE(refused("{}").find("not written by h3"), std::string::npos);
  EXPECT_NE(refused(R"({"recipe": 99})").find("version 99"), std::string::npos);
  Json json = sample().to_json();
  json.set("request", Json::object({{"prompt", "x"}, {"surprise", 1}}));
  EXPECT_NE(refused(json.dump()).find("unknown field surprise"), std::string::npos);
}

TEST(Report, HoldsTheRecipeAndTheMeasurements) {
  RunReport report;
  report.recipe = sample();
  report.stages = {{"denoise", 1.5, 4}};
  report.findings = {{"black", 0.95, 0.9, false, "the picture is black"}};
  report.peak_ram = peak_resident_bytes();
  const Json json = report.to_json();
  EXPECT_EQ(json.at("recipe").dump(), sample().to_json().dump());
  EXPECT_EQ(json.at("stages").at(0).at("seconds").as_double(), 1.5);
  EXPECT_FALSE(json.at("watchdog").at(0).at("ok").as_bool());
  EXPECT_GT(json.at("peak_ram_bytes").as_int(), 1 << 20);
}

}  // namespace
}  // namespace h3
