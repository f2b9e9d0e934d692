// The demo model in full precision against runs of the public reference code on the same weights: prompt rows, noise,
// keyframe latent, the whole denoising loop, picture and sound (tests/data/demo_reference; limits of golden/README 12).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "backends/list.h"
#include "base/compare.h"
#include "base/error.h"
#include "media/media.h"
#include "model/dit/dit.h"
#include "model/text/conditioner.h"
#include "model/vae/audio_vae.h"
#include "model/vae/video_vae.h"
#include "sampling/noise.h"
#include "sampling/sampler.h"
#include "store/weights.h"
#include "tests/support/full_demo.h"

namespace h3 {
namespace {

const std::string kFolder = std::string(H3_SOURCE_DIR) + "/tests/data/demo_reference/";

std::vector<float> values(const TensorSource& source, const std::string& name) {
  const TensorInfo* info = source.find(name);
  if (info == nullptr) fail(Code::data, "no tensor %s", name.c_str());
  Component component;
  component.source = std::shared_ptr<TensorSource>(const_cast<TensorSource*>(&source), [](TensorSource*) {});
  return WeightBinder(component).values(info);
}

void expect_close(const std::vector<float>& got, const std::vector<float>& want, const Limits& limits,
                  const std::string& what) {
  const Comparison comparison = compare_values(got, want, limits);
  EXPECT_TRUE(comparison.passed) << what << ": " << comparison.failure;
}

class DemoReference : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    OpenOptions open;
    open.paths = {testing::full_demo()};
    if (open.paths[0].empty()) GTEST_SKIP() << "no demo_model beside H3_GOLDEN";
    files_ = open_model_files(open);
    source_ = open_safetensors(kFolder + GetParam() + ".safetensors");
    width_ = number("width");
    height_ = number("height");
    frames_ = number("frames");
    const Json keyframes = Json::parse(text("keyframes"), "keyframes");
    if (const Json* first = keyframes.find("first")) first_ = first->as_string();
  }

  std::string text(const char* key) const { return source_->metadata().at(key); }
  int number(const char* key) const { return std::stoi(text(key)); }
  std::vector<float> golden(const std::string& name) const { return values(*source_, name); }
  const Component& part(Role role) const { return *files_.find(role); }
  int latent_height() const { return height_ / kLatentPixels; }
  int latent_width() const { return width_ / kLatentPixels; }

  // The keyframe, when there is one and the build can read it.
  Image keyframe() const { return read_image(kFolder + first_); }

  LayoutSpec spec() const {
    LayoutSpec spec;
    for (const float tag : golden("text_token_tags")) spec.text_tags.push_back(static_cast<int32_t>(tag));
    spec.latent_frames = latent_frames(frames_);
    spec.latent_height = latent_height();
    spec.latent_width = latent_width();
    spec.audio_latents = audio_latents(frames_);
    if (!first_.empty()) {
      spec.blocks.push_back({LayoutBlock::Kind::first_frame, 1, spec.latent_height, spec.latent_width, 0});
    }
    return spec;
  }

  Noise noise() const {
    NoiseSpec noise_spec;
    noise_spec.seed = static_cast<uint64_t>(number("seed"));
    noise_spec.video = {latent_frames(frames_), latent_height(), latent_width()};
    noise_spec.audio_latents = audio_latents(frames_);
    if (!first_.empty()) noise_spec.conditions.push_back({1, latent_height(), latent_width()});
    return noise_profile("diffusers").draw(noise_spec);
  }

  ThreadPool pool_{2};
  Log log_;
  Control control_;  // sessions keep a reference
  Context context_{pool_, log_};
  std::unique_ptr<Ops> ops_ = make_backend("cpu", context_);
  ModelFiles files_;
  std::unique_ptr<TensorSource> source_;
  int width_ = 0, height_ = 0, frames_ = 0;
  std::string first_;
};

TEST_P(DemoReference, PromptRows) {
  std::vector<PromptMedia> media;
  if (!first_.empty()) {
    Image image;
    try {
      image = keyframe();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    media.push_back({.kind = PromptMedia::Kind::image, .frames = {{image.width, image.height, image.rgb}}});
  }
  const auto conditioner = load_conditioner(*ops_, files_, {.tap = testing::kFullDemoTap});
  const Conditioning got = conditioner->encode(text("prompt"), media, control_);
  const std::vector<float> ids = golden("token_ids");
  EXPECT_TRUE(std::equal(ids.begin(), ids.end(), got.ids.begin(), got.ids.end()));
  expect_close(got.embeds, golden("prompt_embeds"), {.rel_l2 = 5e-6}, "prompt_embeds");
}

TEST_P(DemoReference, NoiseAndDenoising) {
  const PackedLayout layout = build_layout(spec());
  const Noise drawn = noise();
  expect_close(drawn.video,
               patchify(golden("noise_video").data(), 24, layout.spec.latent_frames, latent_height(), latent_width()),
               {.max_abs = 2e-6}, "noise_video");
  expect_close(drawn.audio, golden("noise_audio_rows"), {.max_abs = 2e-6}, "noise_audio_rows");

  const auto dit = load_dit(*ops_, part(Role::dit), {}, control_);
  const Schedule schedule = make_schedule("linspace", {.evaluations = number("grid_points") - 1});
  DitRequest request;
  request.layout = &layout;
  request.text = golden("prompt_embeds");
  request.video_times = schedule.video.time;
  request.audio_times = schedule.audio.time;
  if (!first_.empty()) {
    std::vector<float> latent = golden("condition_latent.0");
    noise_condition(noise_profile("diffusers"), latent, golden("noise_condition.0"));
    request.condition_video = patchify(latent.data(), 24, 1, latent_height(), latent_width());
  }
  const auto session = dit->start(std::move(request), control_);
  Device& device = ops_->device();
  const std::vector<int64_t> video_dims{layout.target_video_rows(), 96}, audio_dims{layout.target_audio_rows(), 32};
  const Tensor video = upload_f32(device, drawn.video.data(), video_dims, DType::f32, "video");
  const Tensor audio = upload_f32(device, drawn.audio.data(), audio_dims, DType::f32, "audio");
  const Tensor video_velocity(device, DType::f32, video_dims, "velocity");
  const Tensor audio_velocity(device, DType::f32, audio_dims, "velocity");
  const auto sampler = make_sampler("euler", *ops_, schedule, {video, audio});
  for (int step = 0; step < schedule.evaluations(); ++step) {
    const Streams input = sampler->input(step);
    session->evaluate(step, input.video, input.audio, video_velocity, audio_velocity);
    sampler->advance(step, {video_velocity, audio_velocity});
  }
  ops_->sync();
  expect_close(download_f32(sampler->result().video),
               patchify(golden("latents").data(), 24, layout.spec.latent_frames, latent_height(), latent_width()),
               {.rel_l2 = 1e-5}, "latents");
  expect_close(download_f32(sampler->result().audio),
               audio_planes_to_rows(golden("audio_latents").data(), 32, layout.spec.audio_latents), {.rel_l2 = 1e-5},
               "audio_latents");
}

TEST_P(DemoReference, KeyframeLatent) {
  if (first_.empty()) GTEST_SKIP() << "no keyframe in this run";
  Image image;
  try {
    image = fit_to_canvas(keyframe(), width_, height_, Fit::stretch);
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  constexpr float mean[3] = {0.485f, 0.456f, 0.406f}, deviation[3] = {0.229f, 0.224f, 0.225f};
  const size_t area = static_cast<size_t>(width_) * static_cast<size_t>(height_);
  std::vector<float> pixels(3 * area);
  for (size_t i = 0; i < pixels.size(); ++i) {
    const size_t c = i / area;
    pixels[i] = (static_cast<float>(image.rgb[i % area * 3 + c]) / 255.0f - mean[c]) / deviation[c];
  }
  const auto vae = load_video_vae(*ops_, part(Role::video_vae), {.decoder = false});
  const std::vector<float> moments = vae->encode_moments(pixels.data(), 1, height_, width_, control_);
  const std::vector<float> latent =
      condition_latent(*vae, moments, int64_t{1} * latent_height() * latent_width(), Posterior::sample42);
  // A difference of 1e-7 in the sample may show as a whole step of the f16 grid it is rounded to.
  expect_close(latent, golden("condition_latent.0"), {.rel_l2 = 1e-4, .max_abs = 4e-3}, "condition_latent.0");
}

TEST_P(DemoReference, Picture) {
  Image strip;
  try {
    strip = read_image(kFolder + GetParam() + "_frames.png");
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const auto vae = load_video_vae(*ops_, part(Role::video_vae), {.encoder = false});
  const size_t area = static_cast<size_t>(width_) * static_cast<size_t>(height_);
  std::vector<float> want;
  std::vector<float> got(static_cast<size_t>(frames_) * area * 3);
  vae->decode(golden("latents").data(), latent_frames(frames_), latent_height(), latent_width(), control_,
              [&](const FrameRun& run) {
                for (int f = 0; f < run.frames; ++f) {
                  for (size_t c = 0; c < 3; ++c) {
                    for (size_t i = 0; i < area; ++i) {
                      const size_t plane = c * static_cast<size_t>(run.frames) + static_cast<size_t>(f);
                      got[(static_cast<size_t>(run.first + f) * area + i) * 3 + c] = run.rgb[plane * area + i];
                    }
                  }
                }
              });
  ASSERT_EQ(strip.rgb.size(), got.size());
  for (const uint8_t value : strip.rgb) want.push_back(static_cast<float>(value) / 255.0f);
  // The reference frames are rounded to 8 bits.
  expect_close(got, want, {.max_abs = 0.5 / 255 + 1e-4}, "frames");
}

// Peak signal-to-noise of the fast decode against the exact one, of pixels in 0 .. 1.
TEST_P(DemoReference, PictureInBf16KeepsFortyFiveDecibels) {
  std::vector<float> pictures[2];
  for (const Compute compute : {Compute::f32, Compute::bf16}) {
    const auto vae = load_video_vae(*ops_, part(Role::video_vae), {.compute = compute, .encoder = false});
    std::vector<float>& picture = pictures[compute == Compute::bf16];
    vae->decode(golden("latents").data(), latent_frames(frames_), latent_height(), latent_width(), control_,
                [&](const FrameRun& run) {
                  const int64_t count = int64_t{3} * run.frames * run.height * run.width;
                  picture.insert(picture.end(), run.rgb, run.rgb + count);
                });
  }
  ASSERT_EQ(pictures[0].size(), pictures[1].size());
  ASSERT_FALSE(pictures[0].empty());
  double squares = 0;
  for (size_t i = 0; i < pictures[0].size(); ++i) {
    const double d = static_cast<double>(pictures[1][i]) - static_cast<double>(pictures[0][i]);
    squares += d * d;
  }
  const double decibels = -10 * std::log10(squares / static_cast<double>(pictures[0].size()));
  RecordProperty("decibels", std::to_string(decibels));
  EXPECT_GE(decibels, 45) << "bf16 against f32";
  EXPECT_LT(decibels, 120) << "the two decodes are the same: nothing was rounded";
}

TEST_P(DemoReference, Sound) {
  const auto vae = load_audio_vae(*ops_, part(Role::audio_vae));
  const int latents = audio_latents(frames_);
  const std::vector<float> rows = audio_planes_to_rows(golden("audio_latents").data(), 32, latents);
  expect_close(vae->decode(rows.data(), latents, control_), golden("audio"), {.rel_l2 = 1e-5}, "audio");
}

INSTANTIATE_TEST_SUITE_P(Runs, DemoReference, ::testing::Values("ref1", "ref2"));

}  // namespace
}  // namespace h3
