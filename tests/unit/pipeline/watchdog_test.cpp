// Each check with one clean and one planted clip.
#include "pipeline/watchdog.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"

namespace h3 {
namespace {

constexpr int kWidth = 384, kHeight = 96, kFrames = 5;  // two tiles across: seams at 128 and 256

// A picture that is neither dark, still nor tiled: a smooth wave that moves.
std::vector<float> moving_picture() {
  std::vector<float> rgb(size_t{3} * kFrames * kHeight * kWidth);
  size_t at = 0;
  for (int c = 0; c < 3; ++c) {
    for (int f = 0; f < kFrames; ++f) {
      for (int y = 0; y < kHeight; ++y) {
        for (int x = 0; x < kWidth; ++x) rgb[at++] = static_cast<float>(0.5 + 0.3 * std::sin(0.2 * (x + y + 4 * f)));
      }
    }
  }
  return rgb;
}

std::vector<float> tone() {
  std::vector<float> samples(2 * 6400);
  for (size_t i = 0; i < samples.size(); ++i)
    samples[i] = static_cast<float>(0.4 * std::sin(0.1 * static_cast<double>(i % 6400)));
  return samples;
}

Finding find(const Watchdog& watchdog, const std::string& check) {
  for (const Finding& finding : watchdog.findings()) {
    if (finding.check == check) return finding;
  }
  ADD_FAILURE() << "no check " << check;
  return {};
}

Finding picture(const std::vector<float>& rgb, const std::string& check) {
  Watchdog watchdog(kWidth, kHeight);
  watchdog.add_frames(rgb.data(), kFrames);
  return find(watchdog, check);
}

Finding sound(const std::vector<float>& samples, const std::string& check) {
  Watchdog watchdog(kWidth, kHeight);
  watchdog.set_audio(samples.data(), 2, static_cast<int64_t>(samples.size()) / 2);
  return find(watchdog, check);
}

TEST(Watchdog, Black) {
  EXPECT_TRUE(picture(moving_picture(), "black").ok);
  std::vector<float> dark = moving_picture();
  for (float& value : dark) value *= 0.02f;
  const Finding finding = picture(dark, "black");
  EXPECT_FALSE(finding.ok);
  EXPECT_EQ(finding.value, 1);
  EXPECT_NE(finding.text.find("black"), std::string::npos);
}

TEST(Watchdog, BlackNeedsNineTenths) {
  std::vector<float> rgb = moving_picture();
  for (int c = 0; c < 3; ++c) {  // four of five frames dark
    for (size_t i = 0; i < size_t{4} * kHeight * kWidth; ++i)
      rgb[static_cast<size_t>(c) * kFrames * kHeight * kWidth + i] = 0;
  }
  EXPECT_TRUE(picture(rgb, "black").ok);
}

TEST(Watchdog, Frozen) {
  EXPECT_TRUE(picture(moving_picture(), "frozen").ok);
  std::vector<float> still = moving_picture();
  const size_t frame = size_t{kHeight} * kWidth;
  for (size_t c = 0; c < 3; ++c) {
    for (size_t f = 1; f < kFrames; ++f) {
      std::copy_n(still.begin() + static_cast<std::ptrdiff_t>(c * kFrames * frame), frame,
                  still.begin() + static_cast<std::ptrdiff_t>((c * kFrames + f) * frame));
    }
  }
  EXPECT_FALSE(picture(still, "frozen").ok);
}

TEST(Watchdog, FrozenIsSeenAcrossRuns) {
  const std::vector<float> rgb = moving_picture();
  Watchdog whole(kWidth, kHeight), parts(kWidth, kHeight);
  whole.add_frames(rgb.data(), kFrames);
  const size_t frame = size_t{kHeight} * kWidth;
  for (size_t f = 0; f < kFrames; ++f) {
    std::vector<float> one;
    for (size_t c = 0; c < 3; ++c) {
      const auto start = rgb.begin() + static_cast<std::ptrdiff_t>((c * kFrames + f) * frame);
      one.insert(one.end(), start, start + static_cast<std::ptrdiff_t>(frame));
    }
    parts.add_frames(one.data(), 1);
  }
  EXPECT_EQ(find(whole, "frozen").value, find(parts, "frozen").value);
}

TEST(Watchdog, TileGrid) {
  EXPECT_TRUE(picture(moving_picture(), "tile_grid").ok);
  std::vector<float> tiled = moving_picture();
  for (size_t i = 0; i < tiled.size(); ++i) {
    const size_t x = i % kWidth;
    if (x >= 128) tiled[i] = std::min(1.0f, tiled[i] + 0.5f);  // the second tile is brighter
  }
  EXPECT_FALSE(picture(tiled, "tile_grid").ok);
}

TEST(Watchdog, OneTileHasNoGrid) {
  Watchdog watchdog(64, 64);
  const std::vector<float> rgb(size_t{3} * 2 * 64 * 64, 0.5f);
  watchdog.add_frames(rgb.data(), 2);
  for (const Finding& finding : watchdog.findings()) EXPECT_NE(finding.check, "tile_grid");
}

TEST(Watchdog, Silence) {
  EXPECT_TRUE(sound(tone(), "silence").ok);
  std::vector<float> quiet = tone();
  for (float& value : quiet) value *= 1e-4f;
  EXPECT_FALSE(sound(quiet, "silence").ok);
}

TEST(Watchdog, Clipping) {
  EXPECT_TRUE(sound(tone(), "clipping").ok);
  std::vector<float> loud = tone();
  for (float& value : loud) value = std::max(-1.0f, std::min(1.0f, 10 * value));
  EXPECT_FALSE(sound(loud, "clipping").ok);
}

TEST(Watchdog, OffCentre) {
  EXPECT_TRUE(sound(tone(), "dc_offset").ok);
  std::vector<float> shifted = tone();
  for (size_t i = 6400; i < shifted.size(); ++i) shifted[i] += 0.1f;  // one channel is enough
  EXPECT_FALSE(sound(shifted, "dc_offset").ok);
}

TEST(Watchdog, NotFiniteFailsWithStageAndStep) {
  std::vector<float> values(10, 1.0f);
  EXPECT_NO_THROW(require_finite("denoise", 3, 4, "video velocity", values));
  values[7] = std::numeric_limits<float>::quiet_NaN();
  values[8] = std::numeric_limits<float>::infinity();
  try {
    require_finite("denoise", 3, 4, "video velocity", values);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::numeric);
    EXPECT_NE(std::string(error.what()).find("denoise at step 3 of 4: 2 of 10 values of the video velocity"),
              std::string::npos)
        << error.what();
  }
  std::vector<float> rgb = moving_picture();
  rgb[12345] = -std::numeric_limits<float>::infinity();
  EXPECT_THROW(picture(rgb, "black"), Error);
  std::vector<float> samples = tone();
  samples.back() = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(sound(samples, "silence"), Error);
}

}  // namespace
}  // namespace h3
