#include "sampling/noise.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "sampling/rng.h"
#include "sampling/rows.h"

namespace h3 {
namespace {

NoiseSpec small_spec() {
  NoiseSpec spec;
  spec.seed = 42;
  spec.conditions = {{1, 4, 6}};
  spec.video = {2, 4, 6};
  spec.audio_latents = 8;
  return spec;
}

TEST(Rows, PatchifyOrder) {
  // 2 channels, 1 frame, 2x4: two patches; inside a row (channel, patch row, patch column).
  const std::vector<float> latent = {0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15, 16, 17};
  const std::vector<float> rows = patchify(latent.data(), 2, 1, 2, 4);
  EXPECT_EQ(rows, (std::vector<float>{0, 1, 4, 5, 10, 11, 14, 15, 2, 3, 6, 7, 12, 13, 16, 17}));
  EXPECT_EQ(unpatchify(rows.data(), 2, 1, 2, 4), latent);
}

TEST(Rows, AudioIsChannelMajor) {
  const std::vector<float> planes = {0, 1, 2, 3, 4, 5, 6, 7};  // [2 sides, 2 channels, 2 latents]
  const std::vector<float> rows = audio_planes_to_rows(planes.data(), 2, 2);
  EXPECT_EQ(rows, (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(audio_rows_to_planes(rows.data(), 2, 2), planes);
}

TEST(Noise, DiffusersDrawsConditionsFirst) {
  const Noise noise = noise_profile("diffusers").draw(small_spec());
  TorchGenerator generator(42);
  const std::vector<float> condition = generator.randn(24 * 24), video = generator.randn(24 * 48),
                           audio = generator.randn(16 * 32);
  EXPECT_EQ(noise.conditions.at(0), patchify(condition.data(), 24, 1, 4, 6));
  EXPECT_EQ(noise.video, patchify(video.data(), 24, 2, 4, 6));
  EXPECT_EQ(noise.audio, audio);
}

TEST(Noise, ComfyRestartsPerConditionAndArrangesSoundChannelsFirst) {
  NoiseSpec spec = small_spec();
  spec.conditions.push_back({1, 4, 6});
  const Noise noise = noise_profile("comfy").draw(spec);
  EXPECT_EQ(noise.conditions.at(0), noise.conditions.at(1));
  TorchGenerator generator(42);
  const std::vector<float> video = generator.randn(24 * 48), audio = generator.randn(32 * 2 * 8);
  EXPECT_EQ(noise.video, patchify(video.data(), 24, 2, 4, 6));
  for (int side = 0; side < 2; ++side) {
    for (int t = 0; t < 8; ++t) {
      for (int c = 0; c < 32; ++c) EXPECT_EQ(noise.audio[(side * 8 + t) * 32 + c], audio[(c * 2 + side) * 8 + t]);
    }
  }
}

TEST(Noise, WithoutConditionsDiffusersAndComfyShareTheVideo) {
  NoiseSpec spec = small_spec();
  spec.conditions.clear();
  EXPECT_EQ(noise_profile("diffusers").draw(spec).video, noise_profile("comfy").draw(spec).video);
}

TEST(Noise, CortiqConditionsHaveTheirOwnStreams) {
  NoiseSpec spec = small_spec();
  spec.conditions.push_back({1, 4, 6});
  const Noise noise = noise_profile("cortiq").draw(spec);
  EXPECT_EQ(noise.conditions.at(1), SplitMixGenerator(0x5EEDu ^ 1).randn(24 * 24));
  const std::vector<float> video = SplitMixGenerator(42).randn(24 * 48);
  EXPECT_EQ(noise.video, patchify(video.data(), 24, 2, 4, 6));
}

TEST(Noise, EveryProfileFillsEveryRow) {
  for (const NoiseProfile& profile : noise_profiles()) {
    const Noise noise = profile.draw(small_spec());
    EXPECT_EQ(noise.conditions.at(0).size(), 24u * 24) << profile.name;
    EXPECT_EQ(noise.video.size(), 24u * 48) << profile.name;
    EXPECT_EQ(noise.audio.size(), 16u * 32) << profile.name;
    double sum = 0, squares = 0;
    for (float v : noise.video) sum += v, squares += static_cast<double>(v) * v;
    EXPECT_NEAR(sum / 1152, 0, 0.15) << profile.name;
    EXPECT_NEAR(squares / 1152, 1, 0.2) << profile.name;
  }
  EXPECT_THROW(noise_profile("none"), Error);
}

TEST(Noise, ConditionMixRoundsEachProduct) {
  std::vector<float> latent = {1.5f, 0.0f};
  const std::vector<float> draw = {0.5f, 3.0f};
  std::vector<float> comfy = latent;
  noise_condition(noise_profile("diffusers"), latent, draw);
  const float keep = 0.999f, rest = 1.0f - keep;
  const float first = keep * 1.5f, added = rest * 0.5f;
  EXPECT_EQ(latent[0], first + added);
  noise_condition(noise_profile("comfy"), comfy, draw);
  EXPECT_NE(comfy[1], latent[1]);  // 0.001 and 1 - 0.999 differ in f32
}

}  // namespace
}  // namespace h3
