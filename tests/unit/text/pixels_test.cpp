// Resize rule, resampling and patch order (spec conditioner 4).
#include "model/text/pixels.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace h3 {
namespace {

TEST(Pixels, PresentedSizes) {
  const struct {
    FrameSize in, out;
    int64_t tokens;
  } rows[] = {
      {{288, 512}, {288, 512}, 144},       {{256, 512}, {256, 512}, 128},      {{256, 256}, {256, 256}, 64},
      {{160, 256}, {224, 352}, 77},        {{192, 320}, {224, 352}, 77},       {{544, 960}, {544, 960}, 510},
      {{768, 1344}, {768, 1344}, 1008},    {{2048, 2048}, {2048, 2048}, 4096}, {{2048, 3648}, {2048, 3648}, 7296},
      {{2048, 8192}, {2048, 8192}, 16384}, {{70, 100}, {224, 320}, 70},
  };
  for (const auto& row : rows) {
    const FrameSize got = smart_resize_image(row.in);
    EXPECT_EQ(got, row.out) << row.in.width << "x" << row.in.height;
    EXPECT_EQ(got.height / 32 * (got.width / 32), row.tokens);
  }
  const struct {
    int64_t frames;
    FrameSize out;
  } videos[] = {{11, {768, 1344}}, {25, {768, 1344}}, {26, {736, 1280}}, {29, {704, 1216}}, {31, {672, 1184}}};
  for (const auto& row : videos) EXPECT_EQ(smart_resize_video(row.frames, {768, 1344}), row.out) << row.frames;
  EXPECT_THROW(smart_resize_image({32, 32 * 201}), Error);
  EXPECT_THROW(smart_resize_video(2, {16, 4096}), Error);
}

// Every sample of a patch row is at the place the formula says: red holds y, green holds x, blue the frame.
TEST(Pixels, PatchOrder) {
  const int width = 96, height = 64;
  std::vector<Picture> frames;
  for (int t = 0; t < 3; ++t) {
    Picture p{width, height, {}};
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        for (const int v : {y, x, t}) p.rgb.push_back(static_cast<uint8_t>(v));
      }
    }
    frames.push_back(p);
  }
  const VisionInput input = prepare_video(frames);
  ASSERT_EQ(input.grid_t, 2);
  ASSERT_EQ(input.grid_h, 4);
  ASSERT_EQ(input.grid_w, 6);
  for (int64_t t = 0; t < 2; ++t) {
    for (int64_t py = 0; py < 4; ++py) {
      for (int64_t px = 0; px < 6; ++px) {
        const int64_t row = (((t * 2 + py / 2) * 3 + px / 2) * 2 + py % 2) * 2 + px % 2;
        for (int64_t s = 0; s < 2; ++s) {
          for (int64_t y = 0; y < 16; ++y) {
            for (int64_t x = 0; x < 16; ++x) {
              const auto at = [&](int64_t c) {
                return input.patches[static_cast<size_t>(row * kPatchRow + ((c * 2 + s) * 16 + y) * 16 + x)];
              };
              ASSERT_EQ(at(0), py * 16 + y);
              ASSERT_EQ(at(1), px * 16 + x);
              ASSERT_EQ(at(2), std::min<int64_t>(2 * t + s, 2));  // the odd last frame is paired with itself
            }
          }
        }
      }
    }
  }
}

TEST(Pixels, Values) {
  EXPECT_EQ(pixel_value(0), -1.0f);
  EXPECT_EQ(pixel_value(255), 1.0f);
  EXPECT_EQ(pixel_value(128), 0.5f / 127.5f);
}

double kernel(double x) {
  x = std::fabs(x);
  return x < 1 ? 1.5 * x * x * x - 2.5 * x * x + 1 : x < 2 ? -0.5 * x * x * x + 2.5 * x * x - 4 * x + 2 : 0;
}

// One axis in double, without rounding.
std::vector<double> resample(const std::vector<double>& in, int out) {
  const double scale = static_cast<double>(in.size()) / out, fs = std::max(scale, 1.0);
  std::vector<double> result;
  for (int i = 0; i < out; ++i) {
    const double center = (i + 0.5) * scale;
    double sum = 0, total = 0;
    for (int j = 0; j < static_cast<int>(in.size()); ++j) {
      if (j < static_cast<int>(center - 2 * fs + 0.5) || j >= static_cast<int>(center + 2 * fs + 0.5)) continue;
      const double w = kernel((j - center + 0.5) / fs);
      sum += w * in[static_cast<size_t>(j)];
      total += w;
    }
    result.push_back(sum / total);
  }
  return result;
}

TEST(Pixels, BicubicIsWithinOneLevelOfTheExactOne) {
  for (const int out : {64, 37, 150}) {
    Picture in{100, 1, {}};
    std::vector<double> values;
    for (int x = 0; x < 100; ++x) {
      const int v = (x * 37 + x * x * 11) % 256;
      values.push_back(v);
      in.rgb.insert(in.rgb.end(), 3, static_cast<uint8_t>(v));
    }
    const Picture got = resize_bicubic(in, {1, out});
    const std::vector<double> want = resample(values, out);
    for (int x = 0; x < out; ++x) {
      const double clamped = std::clamp(want[static_cast<size_t>(x)], 0.0, 255.0);
      EXPECT_NEAR(got.rgb[static_cast<size_t>(x) * 3], clamped, 1.0) << out << ' ' << x;
    }
    Picture tall{1, 100, in.rgb};
    EXPECT_EQ(resize_bicubic(tall, {out, 1}).rgb, got.rgb);  // both axes by the same rule
  }
}

TEST(Pixels, EqualSizeIsUntouched) {
  Picture in{32, 32, {}};
  for (int i = 0; i < 32 * 32 * 3; ++i) in.rgb.push_back(static_cast<uint8_t>(i * 7));
  EXPECT_EQ(resize_bicubic(in, {32, 32}).rgb, in.rgb);
}

}  // namespace
}  // namespace h3
