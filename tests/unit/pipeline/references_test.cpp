// References in memory: sizes, rates, order, limits, tags. Files of every kind: tests/cli/references_test.cpp.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "model/dit/layout.h"
#include "pipeline/conditions.h"
#include "pipeline/references.h"

namespace h3 {
namespace {

Reference image(int width, int height) {
  Image picture;
  picture.width = width;
  picture.height = height;
  picture.rgb.assign(static_cast<size_t>(width) * height * 3, 90);
  Reference reference;
  reference.path = "a.png";
  reference.picture = std::make_shared<Image>(picture);
  return reference;
}

// Frame i is uniformly i; `times` may make the rate variable. `channels` of sound at 16 kHz when not 0.
Reference video(int frames, double fps, int channels = 0, std::vector<double> times = {}) {
  ClipData clip;
  clip.width = 320;
  clip.height = 256;
  clip.fps = fps;
  clip.times = std::move(times);
  for (int i = 0; i < frames; ++i) clip.frames.emplace_back(size_t{320} * 256 * 3, static_cast<uint8_t>(i));
  clip.sample_rate = 16000;
  clip.channels = channels;
  clip.samples.assign(static_cast<size_t>(channels) * 48000, 0.25f);
  Reference reference;
  reference.kind = Reference::Kind::video;
  reference.path = "b.mp4";
  reference.clip = std::make_shared<ClipData>(std::move(clip));
  return reference;
}

Reference sound(double seconds, int channels = 1, int rate = 32000) {
  ClipData clip;
  clip.sample_rate = rate;
  clip.channels = channels;
  clip.samples.assign(static_cast<size_t>(seconds * rate) * static_cast<size_t>(channels), 0.5f);
  Reference reference;
  reference.kind = Reference::Kind::audio;
  reference.path = "c.wav";
  reference.clip = std::make_shared<ClipData>(std::move(clip));
  return reference;
}

Request asked(std::vector<Reference> references) {
  Request request;
  request.prompt = "<Picture 1> meets <Picture 2> as in <Video 1> with <Audio 1>";
  request.frames = 56;
  request.width = request.height = 128;
  request.references = std::move(references);
  return request;
}

// Clips stay small, which is quicker.
ModelFacts small() {
  ModelFacts facts;
  facts.references.video_short_edge = 32;
  return facts;
}

std::string refusal(const Request& request, const ModelFacts& facts = small()) {
  try {
    resolve(request, facts);
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "(accepted)";
}

void expect_refused(const Request& request, const std::vector<std::string>& parts, const ModelFacts& facts = small()) {
  const std::string text = refusal(request, facts);
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST(References, OrderGivesTheTagsAndTheLayout) {
  const Resolved resolved = resolve(asked({video(72, 24, 1), image(400, 300), sound(2.5), image(300, 400)}), {});
  EXPECT_EQ(resolved.task, Task::ref2va);
  ASSERT_EQ(resolved.references.size(), 4u);
  EXPECT_EQ(resolved.references[0].sound_tag, "<Audio 1>");
  EXPECT_EQ(resolved.references[0].tag, "<Video 1>");
  EXPECT_EQ(resolved.references[1].tag, "<Picture 1>");
  EXPECT_EQ(resolved.references[2].sound_tag, "<Audio 2>");
  EXPECT_EQ(resolved.references[3].tag, "<Picture 2>");
  const std::vector<std::string> table = reference_table(resolved);
  ASSERT_EQ(table.size(), 5u);
  EXPECT_EQ(table[0], "<Audio 1> = sound of b.mp4 (3.00 s at 16000 Hz mono -> 2.33 s at 32000 Hz stereo)");
  EXPECT_EQ(table[1], "<Video 1> = b.mp4 (3.00 s of 320x256 at 24 fps -> 56 frames of 960x768)");
  EXPECT_EQ(table[2], "<Picture 1> = a.png (400x300 -> 2720x2048)");
  const std::vector<LayoutBlock> blocks = condition_blocks(resolved);
  ASSERT_EQ(blocks.size(), 4u);
  EXPECT_EQ(blocks[0].kind, LayoutBlock::Kind::video);
  EXPECT_EQ(blocks[0].latent_frames, 17);
  EXPECT_EQ(blocks[0].latent_width, 60);
  EXPECT_EQ(blocks[0].audio_latents, 94);  // ceil(74666 / 800)
  EXPECT_EQ(blocks[1].latent_frames, 1);
  EXPECT_EQ(blocks[2].kind, LayoutBlock::Kind::audio);
  EXPECT_EQ(visual_shapes(blocks).size(), 3u);
  ASSERT_EQ(resolved.inputs.size(), 4u);
  EXPECT_EQ(resolved.inputs[1].field, "references[1]");
  EXPECT_NE(resolved.inputs[1].hash, resolved.inputs[3].hash);
}

TEST(References, PictureSizes) {
  const auto size = [](const char* rule, int width, int height) {
    Request request = asked({image(width, height)});
    request.ref_image_size = rule;
    const Resolved resolved = resolve(request, {});
    return std::pair(resolved.references[0].width, resolved.references[0].height);
  };
  EXPECT_EQ(size("official", 1000, 500), std::pair(4096, 2048));
  EXPECT_EQ(size("max", 1000, 500), std::pair(992, 512));  // 15.6 and 31.25 steps of 32, half to even
  EXPECT_EQ(size("max", 5000, 4000), std::pair(2560, 2048));
  EXPECT_EQ(size("match", 512, 512), std::pair(128, 128));
  Request request = asked({image(512, 512)});
  request.profile = "comfy";
  EXPECT_EQ(resolve(request, {}).references[0].width, 128);
  request.ref_image_size = "huge";
  expect_refused(request, {"ref_image_size", "huge", "official"});
}

TEST(References, ClipsComeAt24FramesPerSecond) {
  const auto shown = [](const Reference& reference) {
    std::vector<int> frames;
    const Resolved resolved = resolve(asked({reference}), small());
    for (const std::vector<uint8_t>& frame : resolved.references[0].frames) frames.push_back(frame[0]);
    return frames;
  };
  for (const double fps : {24.0, 30.0, 60.0, 12.5, 23.976}) {
    const int count = static_cast<int>(fps * 2.5);
    std::vector<int> want = resample_frames(fps, count, 56);
    EXPECT_EQ(shown(video(count, fps)), want) << fps;
    std::vector<double> rounded;  // as a container with a millisecond clock has it
    for (int i = 0; i < count; ++i) rounded.push_back(std::round(i / fps * 1000) / 1000);
    EXPECT_EQ(shown(video(count, fps, 0, rounded)), want) << fps;
  }
  // 30 frames in the first second, then three that stand for most of a second each.
  std::vector<double> times;
  for (int i = 0; i < 30; ++i) times.push_back(i / 30.0);
  times.insert(times.end(), {1.0, 1.5, 2.0});
  const std::vector<int> frames = shown(video(33, 30, 0, times));
  ASSERT_GE(frames.size(), 49u);
  EXPECT_EQ(frames[23], 29);
  EXPECT_EQ(frames[24], 30);
  EXPECT_EQ(frames[35], 30);
  EXPECT_EQ(frames[36], 31);
  EXPECT_EQ(frames[48], 32);
}

TEST(References, OnlyWholeGroupsOfAClipAreEncoded) {
  ModelFacts facts = small();
  facts.references.least_seconds = 0;
  for (const auto& [frames, encoded] : {std::pair(48, 39), {39, 39}, {55, 39}, {56, 56}, {72, 56}}) {
    EXPECT_EQ(resolve(asked({video(frames, 24)}), facts).references[0].encoded_frames, encoded) << frames;
  }
}

TEST(References, CountsAreLimited) {
  expect_refused(asked(std::vector<Reference>(10, image(300, 300))), {"10 images", "at most 9"});
  expect_refused(asked(std::vector<Reference>(4, video(48, 24))), {"4 videos", "at most 3"});
  std::vector<Reference> many(9, image(300, 300));
  for (int i = 0; i < 4; ++i) many.push_back(i < 2 ? video(48, 24) : sound(2));
  expect_refused(asked(many), {"13 references", "at most 12"});
  expect_refused(asked({sound(2), sound(2)}), {"cannot stand alone", "image or a video"});
}

TEST(References, SizesRatiosAndSecondsAreLimited) {
  expect_refused(asked({image(1300, 300)}), {"a.png", "1300x300", "1:4"});
  expect_refused(asked({image(300, 200)}), {"a.png", "300x200", "at least 256"});
  expect_refused(asked({image(6000, 3000)}), {"6000x3000", "at most 5760"});
  expect_refused(asked({video(36, 24)}), {"b.mp4", "1.50 s", "2 to 15 seconds", "longer"});
  expect_refused(asked({video(16, 1)}), {"b.mp4", "16.00 s", "cut it"});
  expect_refused(asked({video(9, 1), video(9, 1)}), {"18.00 s of clips", "together"});
  expect_refused(asked({image(300, 300), sound(1)}), {"c.wav", "1.00 s"});
  expect_refused(asked({image(300, 300), sound(2, 6)}), {"c.wav", "6 channels", "mix it down"});
  Request one_frame = asked({video(1, 24)});
  expect_refused(one_frame, {"b.mp4", "1 frames", "at least 13", "image"});
  Request short_clip = asked({video(48, 24)});
  short_clip.frames = 5;
  expect_refused(short_clip, {"frames: 5", "b.mp4", "22"});
}

TEST(References, SoundCanBeLeftOut) {
  Request request = asked({video(48, 24, 2)});
  request.ref_silent = true;
  const Resolved resolved = resolve(request, {});
  EXPECT_TRUE(resolved.references[0].sound.empty());
  EXPECT_TRUE(resolved.request.references[0].silent);
  EXPECT_FALSE(resolved.request.ref_silent.has_value());
  request.references[0].sound = "voice.wav";
  expect_refused(request, {"ref_silent", "voice.wav"});
  request.ref_silent.reset();
  request.references[0].silent = true;
  expect_refused(request, {"b.mp4", "silent", "voice.wav"});
}

TEST(References, WhatOnlyTheyGiveAMeaningIsRefusedWithoutThem) {
  Request request = asked({});
  request.ref_image_size = "match";
  expect_refused(request, {"ref_image_size", "without a reference"});
  request.origin["ref_image_size"] = "environment H3_REF_IMAGE_SIZE";  // for the runs that have some
  EXPECT_EQ(resolve(request, {}).task, Task::t2va);
  request.ref_silent = false;
  EXPECT_EQ(resolve(request, {}).task, Task::t2va);
  request.ref_silent = true;
  expect_refused(request, {"ref_silent", "without a reference"});
}

TEST(References, OneFileIsDecodedAtATime) {
  std::mutex decoding;
  Request request = asked({image(512, 512), video(48, 24)});
  request.decoding = &decoding;
  std::unique_lock<std::mutex> busy(decoding);
  std::atomic<bool> done = false;
  std::thread other([&] {
    resolve(request, {});
    done = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_FALSE(done);
  busy.unlock();
  other.join();
  EXPECT_TRUE(decoding.try_lock());  // given back between the files and at the end
  decoding.unlock();
}

TEST(References, TheModelMustHaveTheOtherTransformer) {
  ModelFacts facts = small();
  facts.dit_ref = false;
  facts.only_dit = "x.safetensors (declared by model_index.json)";
  expect_refused(asked({image(300, 300)}), {"x.safetensors", "fl2va half", "Ref2VA/"}, facts);
  std::swap(facts.dit, facts.dit_ref);
  EXPECT_NE(refusal(asked({}), facts).find("FL2VA/"), std::string::npos);
  EXPECT_EQ(refusal(asked({image(300, 300)}), facts), "(accepted)");
  facts.audio_encoder = false;
  expect_refused(asked({video(48, 24, 2)}), {"b.mp4", "audio encoder", "silent"}, facts);
  facts.video_encoder = false;
  expect_refused(asked({image(300, 300)}), {"references", "no encoder"}, facts);
  Request both = asked({image(300, 300)});
  both.first_picture = both.references[0].picture;
  expect_refused(both, {"references", "first or last frame"});
}

TEST(References, TagsAreChecked) {
  Request request = asked({image(300, 300), video(48, 24, 1)});
  request.prompt = "<Picture 1> walks, <picture 1> and <Image 2>, <Video 2>, <Audio 1>; 3 < 4, <Picture>, <Pictures 1>";
  const std::vector<std::string> warnings = resolve(request, small()).warnings;
  const auto count = [&](const std::string& part) {
    return std::count_if(warnings.begin(), warnings.end(),
                         [&](const std::string& w) { return w.find(part) != std::string::npos; });
  };
  EXPECT_EQ(count("<picture 1> is not a tag, write <Picture 1>"), 1);
  EXPECT_EQ(count("<Image 2> names nothing, the last one is <Picture 1>"), 1);
  EXPECT_EQ(count("<Video 2> names nothing"), 1);
  EXPECT_EQ(count("does not mention <Video 1> (b.mp4)"), 1);
  EXPECT_EQ(count("prompt: "), 4);
  request.strict = true;
  expect_refused(request, {"prompt:", "(strict)"});
  request.prompt = "<Picture 1> as in <Video 1>";
  EXPECT_EQ(refusal(request), "(accepted)");
  request.references.clear();
  expect_refused(request, {"<Picture 1> names nothing"});
}

TEST(References, JsonForm) {
  Request request;
  request.prompt = "x";
  request.references = {image(1, 1), video(1, 24), sound(1)};
  request.references[1].sound = "d.wav";
  request.ref_image_size = "max";
  const Json json = request.to_json();
  EXPECT_EQ(json.at("references").dump(),
            R"([{"type":"image","path":"a.png"},{"type":"video","path":"b.mp4","sound":"d.wav"},)"
            R"({"type":"audio","path":"c.wav"}])");
  EXPECT_EQ(Request::from_json(json).to_json().dump(), json.dump());
  const auto fails = [](const char* text, const char* part) {
    try {
      Request::from_json(Json::parse(text, "request"));
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  fails(R"({"references":{}})", "a list");
  fails(R"({"references":[{"path":"a"}]})", "references[0].type");
  fails(R"({"references":[{"type":"image","pth":"a"}]})", "did you mean path");
  fails(R"({"references":[{"type":"film","path":"a"}]})", "image, video or audio");
  fails(R"({"references":[{"type":"video","path":"a","silent":1}]})", "true or false");
}

}  // namespace
}  // namespace h3
