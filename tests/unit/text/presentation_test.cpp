// Segments, tags and rotary positions (spec conditioner 3 and 6.3).
#include "model/text/presentation.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "store/model_files.h"

namespace h3 {
namespace {

constexpr int32_t kStart = 300, kEnd = 301, kImage = 302, kVideo = 303;

// Plain bytes and the four vision tokens.
Tokenizer made_tokenizer() {
  TokenizerFiles files;
  files.merges_txt = "a b\n";
  files.tokenizer_config_json = R"({"added_tokens_decoder": {
    "300": {"content": "<|vision_start|>"}, "301": {"content": "<|vision_end|>"},
    "302": {"content": "<|image_pad|>"}, "303": {"content": "<|video_pad|>"}}})";
  return Tokenizer(files, AddedSet::stock);
}

Picture flat(int width, int height) {
  return {width, height, std::vector<uint8_t>(static_cast<size_t>(width) * static_cast<size_t>(height) * 3)};
}

PromptMedia image(int width, int height) { return {PromptMedia::Kind::image, {flat(width, height)}, false}; }

PromptMedia video(int frames, int width, int height, bool sound) {
  return {PromptMedia::Kind::video, std::vector<Picture>(static_cast<size_t>(frames), flat(width, height)), sound};
}

// The text with every run of pads written as {count}.
std::string readable(const Tokenizer& tokenizer, const Presentation& presentation) {
  std::string out;
  for (size_t i = 0; i < presentation.ids.size();) {
    const int32_t id = presentation.ids[i];
    size_t end = i + 1;
    if (id == kImage || id == kVideo) {
      while (end < presentation.ids.size() && presentation.ids[end] == id) ++end;
      out += strf("{%zu}", end - i);
    } else if (id == kStart || id == kEnd) {
      out += id == kStart ? "[" : "]";
    } else {
      out += tokenizer.decode(std::vector<int32_t>{id});
    }
    i = end;
  }
  return out;
}

std::string usage_error(const std::string& prompt, const std::vector<PromptMedia>& media, int64_t limit = 262144) {
  const Tokenizer tokenizer = made_tokenizer();
  try {
    present(tokenizer, prompt, media, limit);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::usage);
    return error.what();
  }
  return "";
}

TEST(Presentation, TextAlone) {
  const Tokenizer tokenizer = made_tokenizer();
  const Presentation p = present(tokenizer, " ab", {});
  EXPECT_EQ(p.ids, (std::vector<int32_t>{220, 256}));
  EXPECT_EQ(p.tags, (std::vector<int32_t>{1, 1}));
}

TEST(Presentation, EverySegmentInRequestOrder) {
  const Tokenizer tokenizer = made_tokenizer();
  const Presentation p = present(tokenizer, "go",
                                 {video(25, 64, 64, true),
                                  image(256, 256),
                                  {PromptMedia::Kind::audio, {}, false},
                                  video(13, 96, 64, false),
                                  image(512, 256)});
  EXPECT_EQ(readable(tokenizer, p),
            "<Audio 1>: <Video 1>: <0.2 seconds>[{4}]<1.0 seconds>[{4}]<Picture 1>: [{64}]<Audio 2>: "
            "<Video 2>: <0.2 seconds>[{6}]<Picture 2>: [{128}]go");
  for (size_t i = 0; i < p.ids.size(); ++i) EXPECT_EQ(p.tags[i], p.ids[i] >= kStart ? 0 : 1) << i;
  ASSERT_EQ(p.vision.size(), 4u);
  EXPECT_EQ(p.vision[0].grid_t, 2);
}

TEST(Presentation, SegmentsAreTokenisedApart) {
  const Tokenizer tokenizer = made_tokenizer();
  // Joined, ": a" and "b" would meet in the merge "a b".
  EXPECT_EQ(present(tokenizer, "b", {{PromptMedia::Kind::audio, {}, false}}).ids.back(), 65);
}

TEST(Presentation, Refusals) {
  EXPECT_NE(usage_error("", {}).find("empty"), std::string::npos);
  EXPECT_NE(usage_error("a <|image_pad|>", {}).find("<|image_pad|>"), std::string::npos);
  EXPECT_NE(usage_error("a <|video_pad|>", {}).find("<|video_pad|>"), std::string::npos);
  EXPECT_NE(usage_error("a", {video(12, 64, 64, false)}).find("12 frames"), std::string::npos);
  EXPECT_NE(usage_error("abcdef", {}, 4).find("at most 4"), std::string::npos);
  EXPECT_NE(usage_error("a", {image(32 * 201, 32)}).find("200"), std::string::npos);
}

TEST(Presentation, LabelsOfVideoBlocks) {
  const auto labels = [](int64_t frames) {
    return block_labels(static_cast<int64_t>(conditioner_frames(frames).size()));
  };
  EXPECT_EQ(labels(25), (std::vector<std::string>{"<0.2 seconds>", "<1.0 seconds>"}));
  EXPECT_EQ(labels(124), (std::vector<std::string>{"<0.2 seconds>", "<1.2 seconds>", "<2.2 seconds>", "<3.2 seconds>",
                                                   "<4.2 seconds>", "<5.0 seconds>"}));
  EXPECT_EQ(labels(345).back(), "<14.0 seconds>");
}

VisionInput grid(bool is_video, int64_t t, int64_t h, int64_t w) {
  return {.video = is_video, .grid_t = t, .grid_h = h, .grid_w = w};
}

void add(std::vector<int32_t>& ids, int32_t id, int64_t count) {
  ids.insert(ids.end(), static_cast<size_t>(count), id);
}

// The worked example of spec conditioner 3.7: a 512x288 keyframe and a prompt of 16 tokens.
TEST(RotaryPositions, WorkedExample) {
  std::vector<int32_t> ids;
  add(ids, 1, 6);
  add(ids, kStart, 1);
  add(ids, kImage, 144);
  add(ids, kEnd, 1);
  add(ids, 1, 16);
  const std::vector<VisionRun> runs = find_vision_runs(ids, {kStart, kEnd, kImage, kVideo}, {grid(false, 1, 18, 32)});
  ASSERT_EQ(runs.size(), 1u);
  const auto axes = rotary_positions(static_cast<int64_t>(ids.size()), runs);
  ASSERT_EQ(ids.size(), 168u);
  for (int i = 0; i <= 6; ++i) {
    for (int axis = 0; axis < 3; ++axis) EXPECT_EQ(axes[axis][i], i);
  }
  for (int k = 0; k < 144; ++k) {
    EXPECT_EQ(axes[0][7 + k], 7);
    EXPECT_EQ(axes[1][7 + k], 7 + k / 16);
    EXPECT_EQ(axes[2][7 + k], 7 + k % 16);
  }
  for (int axis = 0; axis < 3; ++axis) {
    EXPECT_EQ(axes[axis][151], 23);
    EXPECT_EQ(axes[axis][152], 24);
    EXPECT_EQ(axes[axis][167], 39);
  }
}

TEST(RotaryPositions, PicturesAndVideoBlocksFollowEachOther) {
  // Two pictures (2x2 and 1x3 merged), then a video of two blocks (1x2), videos given before pictures.
  std::vector<int32_t> ids = {kStart, kImage, kImage, kImage, kImage, kEnd,   kStart, kImage, kImage, kImage, kEnd,
                              kStart, kVideo, kVideo, kEnd,   5,      kStart, kVideo, kVideo, kEnd,   7};
  const std::vector<VisionInput> vision = {grid(true, 2, 2, 4), grid(false, 1, 4, 4), grid(false, 1, 2, 6)};
  const std::vector<VisionRun> runs = find_vision_runs(ids, {kStart, kEnd, kImage, kVideo}, vision);
  ASSERT_EQ(runs.size(), 4u);
  EXPECT_EQ(runs[0].feature, 4);  // behind the four tokens of the video
  EXPECT_EQ(runs[1].feature, 8);
  EXPECT_EQ(runs[2].feature, 0);
  EXPECT_EQ(runs[3].feature, 2);
  const auto axes = rotary_positions(static_cast<int64_t>(ids.size()), runs);
  EXPECT_EQ(axes[0], (std::vector<int32_t>{0, 1, 1, 1, 1, 3, 4, 5, 5, 5, 8, 9, 10, 10, 12, 13, 14, 15, 15, 17, 18}));
  EXPECT_EQ(axes[1], (std::vector<int32_t>{0, 1, 1, 2, 2, 3, 4, 5, 5, 5, 8, 9, 10, 10, 12, 13, 14, 15, 15, 17, 18}));
  EXPECT_EQ(axes[2], (std::vector<int32_t>{0, 1, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}));
}

TEST(RotaryPositions, PadsThatDoNotFitAreRefused) {
  const Tokenizer::Special special{kStart, kEnd, kImage, kVideo};
  EXPECT_THROW(find_vision_runs({kImage, kImage}, special, {}), Error);
  EXPECT_THROW(find_vision_runs({kImage, kImage}, special, {grid(false, 1, 2, 2)}), Error);
  EXPECT_THROW(find_vision_runs({kImage}, special, {grid(true, 1, 2, 2)}), Error);
  EXPECT_THROW(find_vision_runs({1, 2}, special, {grid(false, 1, 2, 2)}), Error);
}

}  // namespace
}  // namespace h3
