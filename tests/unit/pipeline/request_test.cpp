#include "pipeline/request.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/ops.h"
#include "pipeline/checks.h"

namespace h3 {
namespace {

Request asked() {
  Request request;
  request.prompt = "a red ball bounces";
  return request;
}

std::string refusal(const Request& request, const ModelFacts& facts = {}) {
  try {
    resolve(request, facts);
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "(accepted)";
}

std::string from_of(const Resolved& resolved, const std::string& field) {
  for (const Choice& choice : resolved.choices) {
    if (choice.field == field) return choice.from;
  }
  return "(none)";
}

std::shared_ptr<const Image> picture(int width, int height) {
  Image image;
  image.width = width;
  image.height = height;
  image.rgb.assign(static_cast<size_t>(width) * static_cast<size_t>(height) * 3, 100);
  return std::make_shared<Image>(image);
}

TEST(Request, DefaultsComeFromTheModel) {
  ModelFacts facts;
  facts.name = "demo";
  facts.width = facts.height = 128;
  facts.frames = 22;
  facts.evaluations = 4;
  const Resolved resolved = resolve(asked(), facts);
  EXPECT_EQ(resolved.width, 128);
  EXPECT_EQ(resolved.frames, 22);
  EXPECT_EQ(resolved.latent_frames, 7);
  EXPECT_EQ(resolved.audio_latents, 37);
  EXPECT_EQ(resolved.output_samples, 29600);
  EXPECT_EQ(resolved.evaluations, 4);
  EXPECT_EQ(resolved.seed, 42u);
  EXPECT_EQ(resolved.task, Task::t2va);
  EXPECT_EQ(from_of(resolved, "size"), "default of the demo");
  EXPECT_TRUE(resolved.notes.empty());
}

TEST(Request, SnappingIsSaid) {
  Request request = asked();
  request.width = 500;
  request.height = 300;
  request.frames = 35;
  const Resolved resolved = resolve(request, {});
  EXPECT_EQ(resolved.width, 512);
  EXPECT_EQ(resolved.height, 288);
  EXPECT_EQ(resolved.frames, 39);
  EXPECT_EQ(from_of(resolved, "size"), "snapped from 500x300");
  EXPECT_EQ(from_of(resolved, "frames"), "snapped up from 35");
  ASSERT_EQ(resolved.notes.size(), 3u);
  EXPECT_NE(resolved.notes[0].find("500x300"), std::string::npos);
  EXPECT_EQ(resolved.notes[1], "size: 512x288 is decoded in 6 tiles, 448x256 would take 2");
  EXPECT_NE(resolved.notes[2].find("35"), std::string::npos);
}

// Tiles of 256 pixels that overlap by 64: edges of 256, 448, 640 ... waste nothing (spec vae 4.1).
TEST(Request, SizesJustAboveTheTileGridAreNamed) {
  EXPECT_EQ(tile_hint(288, 288), "size: 288x288 is decoded in 4 tiles, 256x256 would take 1");
  EXPECT_EQ(tile_hint(256, 288), "size: 256x288 is decoded in 2 tiles, 256x256 would take 1");
  EXPECT_EQ(tile_hint(256, 256), "");
  EXPECT_EQ(tile_hint(128, 128), "");
  EXPECT_EQ(tile_hint(448, 640), "");
  EXPECT_EQ(tile_hint(320, 256), "") << "256x256 is a fifth smaller";
  EXPECT_EQ(tile_hint(960, 544), "");
  EXPECT_EQ(tile_hint(1344, 768), "") << "24 tiles instead of 28";
}

TEST(Request, ExactKeepsTheAskedLength) {
  Request request = asked();
  request.frames = 30;
  request.exact = true;
  const Resolved resolved = resolve(request, {});
  EXPECT_EQ(resolved.frames, 39);
  EXPECT_EQ(resolved.output_frames, 30);
  EXPECT_EQ(resolved.output_samples, 40000);
  EXPECT_EQ(resolved.request.frames, 30);
}

TEST(Request, SecondsAndAspect) {
  Request request = asked();
  request.seconds = 5;
  request.aspect = "16:9";
  request.short_edge = 768;
  const Resolved resolved = resolve(request, {});
  EXPECT_EQ(resolved.frames, 124);
  EXPECT_EQ(resolved.width, 1344);
  EXPECT_EQ(resolved.height, 768);
}

TEST(Request, CanvasFollowsTheFirstKeyframe) {
  Request request = asked();
  request.last_picture = picture(100, 200);
  ModelFacts facts;
  facts.width = facts.height = 128;
  const Resolved resolved = resolve(request, facts);
  EXPECT_EQ(resolved.task, Task::fl2va);
  EXPECT_EQ(resolved.width, 128);
  EXPECT_EQ(resolved.height, 256);
  ASSERT_EQ(resolved.keyframes.size(), 1u);
  EXPECT_TRUE(resolved.keyframes[0].last);
  EXPECT_EQ(resolved.keyframes[0].picture.height, 256);
  EXPECT_EQ(from_of(resolved, "last_frame.fit"), "rule of the profile");
}

TEST(Request, ResolvedRequestResolvesToItself) {
  Request request = asked();
  request.aspect = "1:1";
  request.seconds = 1.4;
  request.seed = Seed{0, true};
  request.exact = true;
  const Resolved first = resolve(request, {});
  const Resolved second = resolve(Request::from_json(first.request.to_json()), {});
  EXPECT_EQ(first.request.to_json().dump(), second.request.to_json().dump());
  EXPECT_EQ(first.seed, second.seed);
  EXPECT_EQ(first.output_frames, second.output_frames);
}

TEST(Request, ErrorsNameFieldValueAndRange) {
  struct Case {
    const char* key;
    Json value;
    const char* text;
  };
  const Case cases[] = {
      {"width", Json(0), "width: 0 is not allowed, give 32 to 4096"},
      {"width", Json(-64), "width: -64 is not allowed"},
      {"width", Json(100000), "width: 100000 is not allowed"},
      {"frames", Json(0), "frames: 0 is not allowed, give 1 to 1450"},
      {"frames", Json(-5), "frames: -5 is not allowed"},
      {"frames", Json(100000), "frames: 100000 is not allowed"},
      {"steps", Json(0), "steps: 0 is not allowed, give 1 to 1000"},
      {"seconds", Json(0.0), "seconds: 0 is not allowed"},
      {"seconds", Json(1e9), "seconds: 1e+09 is not allowed"},
      {"aspect", Json("9:1"), "aspect: \"9:1\" is not allowed, give 1:4 to 4:1"},
      {"aspect", Json("wide"), "aspect: \"wide\" is not a ratio"},
      {"profile", Json("difusers"), "did you mean diffusers?"},
      {"precision", Json("int3"), "precision: \"int3\" is not known, give f32, bf16, int8, fp8 or nvfp4"},
      {"precision", Json("nvfp4"), "precision: nvfp4 is not possible, it needs a transformer stored in nvfp4"},
      {"precision", Json("fp8"), "precision: fp8 needs a transformer stored in fp8 and an NVIDIA card"},
      {"vae_precision", Json("int8"), "vae_precision: \"int8\" is not known, give f32, bf16, f16 or fp8"},
      {"vae_precision", Json("fp8"), "vae_precision: fp8 needs an NVIDIA card of compute capability 8.9 or newer"},
      {"video_shift", Json(0.0), "video_shift: 0 is not allowed"},
      {"quality", Json(99), "quality: 99 is not allowed, give 0 to 51"},
  };
  for (const Case& c : cases) {
    Request request = asked();
    if (std::string(c.key) == "width") request.height = 512;
    set_field(request, c.key, c.value);
    EXPECT_NE(refusal(request).find(c.text), std::string::npos) << c.key << ": " << refusal(request);
  }
  Request request = asked();
  request.fit = "crop";
  EXPECT_NE(refusal(request).find("fit: \"crop\" is not known, give stretch, cover or contain"), std::string::npos);
}

TEST(Request, Nvfp4NeedsTheFileAndTheCard) {
  Request request = asked();
  request.precision = "nvfp4";
  ModelFacts facts;
  facts.nvfp4 = true;
  facts.nvfp4_refused = "it needs compute capability 10.0 or later, this card is 9.0";
  EXPECT_EQ(refusal(request, facts),
            "precision: nvfp4 is not possible, it needs compute capability 10.0 or later, this card is 9.0; give bf16, "
            "which any file and device can do");
  facts.nvfp4_refused.clear();
  EXPECT_EQ(resolve(request, facts).compute, Compute::packed);
}

TEST(Request, PromptRules) {
  Request request;
  EXPECT_NE(refusal(request).find("prompt: it is empty"), std::string::npos);
  request.prompt = " ";
  const Resolved blank = resolve(request, {});
  EXPECT_FALSE(blank.warnings.empty());
  request.prompt = "a \xff b";
  EXPECT_NE(refusal(request).find("prompt: byte 2 is not valid UTF-8"), std::string::npos);
  request.prompt = "a <|image_pad|> b";
  EXPECT_NE(refusal(request).find("<|image_pad|>"), std::string::npos);
}

TEST(Request, ConflictsAreRefused) {
  Request request = asked();
  request.frames = 39;
  request.seconds = 2;
  EXPECT_NE(refusal(request).find("drop one of them"), std::string::npos);
  request = asked();
  request.width = 512;
  EXPECT_NE(refusal(request).find("width: 512 is given alone, give height too"), std::string::npos);
  request.height = 288;
  request.aspect = "1:1";
  EXPECT_NE(refusal(request).find("already fix the canvas"), std::string::npos);
}

TEST(Request, MissingPartsAreNamed) {
  ModelFacts facts;
  facts.vision = false;
  Request request = asked();
  EXPECT_EQ(refusal(request, facts), "(accepted)");
  request.first_picture = picture(64, 64);
  EXPECT_NE(refusal(request, facts).find("first_frame: the text encoder has no vision tower"), std::string::npos);
  facts = {};
  facts.tokenizer = false;
  EXPECT_NE(refusal(asked(), facts).find("no tokenizer was found"), std::string::npos);
  facts = {};
  facts.dit = false;
  EXPECT_NE(refusal(asked(), facts).find("no transformer"), std::string::npos);
  facts = {};
  facts.audio_decoder = false;
  EXPECT_NE(refusal(asked(), facts).find("no audio decoder"), std::string::npos);
  request = asked();
  request.audio = false;
  EXPECT_EQ(refusal(request, facts), "(accepted)");
}

TEST(Request, OutsideTheTrainedRangeIsWarned) {
  Request request = asked();
  request.width = 2048;
  request.height = 1152;
  request.frames = 22;
  const Resolved resolved = resolve(request, {});
  EXPECT_EQ(resolved.warnings.size(), 2u);
}

TEST(Request, JsonRoundTrip) {
  Request request = asked();
  request.width = 512;
  request.height = 288;
  request.seed = Seed{UINT64_MAX, false};
  request.exact = true;
  request.video_shift = 6.5;
  request.dumps = {{"text", "t.safetensors"}};
  const Request again = Request::from_json(Json::parse(request.to_json().dump(), "test"));
  EXPECT_EQ(again.to_json().dump(), request.to_json().dump());
  EXPECT_EQ(again.seed->value, UINT64_MAX);
}

TEST(Request, JsonRefusesUnknownAndMistyped) {
  const auto refused = [](const char* text) -> std::string {
    try {
      Request::from_json(Json::parse(text, "test"));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::usage);
      return error.what();
    }
    return "(accepted)";
  };
  EXPECT_EQ(refused(R"({"framse": 5})"), "unknown field framse (did you mean frames?)");
  EXPECT_EQ(refused(R"({"width": "big"})"), "width: \"big\" is not allowed, give a whole number");
  EXPECT_EQ(refused(R"({"width": 12.5})"), "width: 12.5 is not allowed, give a whole number");
  EXPECT_EQ(refused(R"({"prompt": 3})"), "prompt: 3 is not allowed, give a string");
  EXPECT_NE(refused(R"({"seed": -2})").find("seed: -2 is not allowed"), std::string::npos);
  EXPECT_NE(refused(R"({"seed": "18446744073709551616"})").find("is not allowed"), std::string::npos);
  EXPECT_EQ(refused(R"({"seed": null, "steps": 4})"), "(accepted)");
}

}  // namespace
}  // namespace h3
