// The affine map from latents to colours: recovered where the decoder is affine, close on the demo's decoder.
#include "pipeline/preview.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "model/vae/video_vae.h"

namespace h3 {
namespace {

// Colours are an affine function of three of the channels, constant over a position; the rest does not matter.
class AffineVae final : public VideoVae {
 public:
  mutable int decodes = 0;
  bool has_encoder() const override { return false; }
  bool has_decoder() const override { return true; }
  const std::vector<float>& latents_mean() const override { return mean_; }
  const std::vector<float>& latents_std() const override { return mean_; }
  int spatial_ratio() const override { return 16; }
  const ClipGeometry& clip() const override { return clip_; }
  int64_t weight_bytes() const override { return 0; }
  int64_t decode_bytes(int, int, int) const override { return 0; }
  int64_t encode_bytes(int, int, int) const override { return 0; }
  static float colour(const float* latent, int64_t stride, int channel) {
    return 0.5f + 0.1f * latent[channel * stride] - 0.05f * latent[(channel + 4) * stride];
  }
  void decode(const float* latent, int frames, int height, int width, const Control&,
              const std::function<void(const FrameRun&)>& sink) override {
    ++decodes;
    const int64_t area = int64_t{height} * width;
    const int total = (frames - 2) / 5 * 17 + 5, h = height * 16, w = width * 16;
    std::vector<float> rgb(static_cast<size_t>(3 * h * w));
    for (int f = 0; f < total; ++f) {
      const int t = f / 17 * 5 + (f % 17 + 3) / 4;
      for (int c = 0; c < 3; ++c) {
        for (int y = 0; y < h; ++y) {
          for (int x = 0; x < w; ++x) {
            rgb[static_cast<size_t>((c * h + y) * w + x)] =
                colour(latent + t * area + (y / 16) * width + x / 16, frames * area, c);
          }
        }
      }
      sink({.first = f, .frames = 1, .height = h, .width = w, .rgb = rgb.data()});
    }
  }
  std::vector<float> decode_raw(const float*, int, int, int, const Control&) override { return {}; }
  std::vector<float> encode_moments(const PixelSource&, int, int, int, const Control&) override { return {}; }

 private:
  std::vector<float> mean_ = std::vector<float>(24);
  ClipGeometry clip_;
};

TEST(Preview, AnAffineDecoderIsRecovered) {
  AffineVae vae;
  const PreviewMap map = fit_preview(vae, Control());
  ASSERT_EQ(map.weight.size(), 3u * 25);
  EXPECT_LT(map.residual, 2e-3);
  for (int c = 0; c < 3; ++c) {
    for (int k = 0; k < 25; ++k) {
      const double expected = k == 24 ? 0.5 : k == c ? 0.1 : k == c + 4 ? -0.05 : 0;
      EXPECT_NEAR(map.weight[static_cast<size_t>(c * 25 + k)], expected, 2e-3) << c << " " << k;
    }
  }
}

TEST(Preview, PictureIsTheMapOfTheFrameAskedFor) {
  PreviewMap map;
  map.channels = 2;
  map.weight = {1, 0, 0.25f, 0, 1, 0, 0, 0, std::nanf("")};
  // [2, 2, 1, 1]: channel 0 is 0 then 0.5, channel 1 is 2 then 1.
  const float latent[] = {0, 0.5f, 2, 1};
  const Image first = preview_picture(map, latent, 2, 1, 1, 0), second = preview_picture(map, latent, 2, 1, 1, 1);
  EXPECT_EQ(first.width, 16);
  EXPECT_EQ(std::vector<uint8_t>(first.rgb.begin(), first.rgb.begin() + 3), (std::vector<uint8_t>{64, 255, 0}));
  EXPECT_EQ(std::vector<uint8_t>(second.rgb.begin(), second.rgb.begin() + 3), (std::vector<uint8_t>{191, 255, 0}));
}

TEST(Preview, TheFitIsKeptByModelAndDamageIsPassedOver) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "h3-preview-cache";
  std::filesystem::remove_all(folder);
  ::setenv("H3_CACHE_DIR", folder.c_str(), 1);
  AffineVae vae;
  const auto fit = [&] { return fit_preview(vae, Control()); };
  const PreviewMap first = preview_map("a", 24, fit);
  const int once = vae.decodes;
  EXPECT_EQ(preview_map("a", 24, fit).weight, first.weight);
  EXPECT_EQ(vae.decodes, once);
  preview_map("b", 24, fit);
  EXPECT_EQ(vae.decodes, 2 * once);
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::filesystem::resize_file(file.path(), 40);
  }
  EXPECT_EQ(preview_map("a", 24, fit).weight, first.weight);
  EXPECT_EQ(vae.decodes, 3 * once);
  ::unsetenv("H3_CACHE_DIR");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace h3
