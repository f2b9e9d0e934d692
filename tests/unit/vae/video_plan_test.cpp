#include "model/vae/video_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "codec/scalar.h"

namespace h3 {
namespace {

TEST(VideoTiles, MatchTheReleasedTable) {
  struct Row {
    int length;
    std::vector<int> starts, overlaps;
  };
  const Row rows[] = {
      {16, {0}, {}},
      {256, {0}, {}},
      {288, {0, 32}, {224}},
      {320, {0, 64}, {192}},
      {384, {0, 128}, {128}},
      {448, {0, 192}, {64}},
      {480, {0, 112, 224}, {144, 144}},
      {512, {0, 128, 256}, {128, 128}},
      {544, {0, 144, 288}, {112, 112}},
      {576, {0, 160, 320}, {96, 96}},
      {640, {0, 192, 384}, {64, 64}},
      {704, {0, 144, 288, 448}, {112, 112, 96}},
      {768, {0, 160, 336, 512}, {96, 80, 80}},
      {832, {0, 192, 384, 576}, {64, 64, 64}},
      {864, {0, 144, 288, 448, 608}, {112, 112, 96, 96}},
      {960, {0, 176, 352, 528, 704}, {80, 80, 80, 80}},
      {1024, {0, 192, 384, 576, 768}, {64, 64, 64, 64}},
      {1152, {0, 176, 352, 528, 704, 896}, {80, 80, 80, 80, 64}},
      {1280, {0, 160, 320, 496, 672, 848, 1024}, {96, 96, 80, 80, 80, 80}},
      {1344, {0, 176, 352, 528, 704, 896, 1088}, {80, 80, 80, 80, 64, 64}},
  };
  for (const Row& row : rows) {
    const TileAxis axis = tile_axis(row.length);
    EXPECT_EQ(axis.starts, row.starts) << row.length;
    EXPECT_EQ(axis.overlaps, row.overlaps) << row.length;
  }
}

TEST(VideoTiles, CoverEveryLengthWithTheFewestTiles) {
  for (int length = 272; length <= 4096; length += 16) {
    const TileAxis axis = tile_axis(length);
    const int n = axis.count();
    EXPECT_EQ(axis.end(n - 1), length);
    EXPECT_LT(256 * (n - 1) - 64 * (n - 2), length) << "one tile fewer would do";
    for (int k = 0; k + 1 < n; ++k) {
      EXPECT_GE(axis.overlaps[k], 64);
      EXPECT_EQ(axis.starts[k] + axis.lengths[k] - axis.starts[k + 1], axis.overlaps[k]);
    }
  }
}

TEST(VideoClips, FollowTheReleasedSchedule) {
  const ClipGeometry g;
  ASSERT_TRUE(g.valid());
  EXPECT_EQ(g.window(), 7);
  EXPECT_EQ(g.pre_padding(), 3);
  EXPECT_EQ(g.frame_overlap(), 5);
  struct Row {
    int latent, clips, frames;
  };
  // On the grid, then the lengths that the reference trims or refuses.
  for (const Row& row : {Row{7, 1, 22},
                         {12, 2, 39},
                         {17, 3, 56},
                         {37, 7, 124},
                         {62, 12, 209},
                         {102, 20, 345},
                         {107, 21, 362},
                         {3, 1, 9},
                         {8, 2, 26},
                         {9, 2, 30},
                         {2, 1, 5},
                         {1, 1, 1}}) {
    const ClipSchedule schedule = clip_schedule(row.latent, g);
    EXPECT_EQ(schedule.clips, row.clips) << row.latent;
    EXPECT_EQ(schedule.frames, row.frames) << row.latent;
    EXPECT_EQ(row.latent + schedule.pad, 5 * schedule.clips + 2) << row.latent;
  }
}

TEST(VideoClips, EncodeAndDecodeAgreeOnTheGrid) {
  const ClipGeometry g;
  EXPECT_EQ(encoded_frames(1, g), 1);
  EXPECT_EQ(encoded_frames(10, g), 2);
  EXPECT_EQ(encoded_frames(20, g), 7);
  for (int n = 1; n < 30; ++n) {
    EXPECT_EQ(encoded_frames(17 * n + 5, g), 5 * n + 2);
    EXPECT_EQ(clip_schedule(5 * n + 2, g).frames, 17 * n + 5);
  }
}

TEST(VideoRotary, FrequenciesHaveTheReferenceBits) {
  const uint32_t bits[8] = {0x3f800000, 0x3f0ff59a, 0x3ea1e89b, 0x3e361887,
                            0x3dcccccd, 0x3d6655c2, 0x3d0186e3, 0x3c91ad39};
  const std::vector<float> inverse = rotary_frequencies(100.0, 8);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(f32_bits(inverse[i]), bits[i]) << i;
}

TEST(VideoRotary, SuffixTokensAreNotTurned) {
  const RotaryTable table = rotary_table(2, 3, 5, 4, 100.0, 8);
  ASSERT_EQ(table.rows, 34);
  for (int64_t i = 30 * table.pairs; i < 34 * table.pairs; ++i) {
    EXPECT_EQ(table.cos[i], 1.0f);
    EXPECT_EQ(table.sin[i], 0.0f);
  }
  // The middle of an odd axis has coordinate 0: rows of y = 1, x = 2 turn by time alone.
  EXPECT_EQ(table.sin[(1 * 5 + 2) * table.pairs + 8], 0.0f);
  EXPECT_NE(table.sin[(1 * 5 + 2) * table.pairs], 0.0f);
}

// The stitch as the reference performs it on whole tiles: blend the top rows, then the left columns, crop, concatenate.
std::vector<float> naive_stitch(const std::vector<std::vector<float>>& tiles, const TileAxis& ys, const TileAxis& xs) {
  const int height = ys.end(ys.count() - 1), width = xs.end(xs.count() - 1);
  std::vector<float> canvas(static_cast<size_t>(height) * width, -1.0f);
  for (int i = 0; i < ys.count(); ++i) {
    for (int j = 0; j < xs.count(); ++j) {
      std::vector<float> tile = tiles[i * xs.count() + j];
      const int h = ys.lengths[i], w = xs.lengths[j];
      if (i > 0) {
        const int e = ys.overlaps[i - 1];
        for (int k = 0; k < e; ++k) {
          const float b = static_cast<float>(k) / static_cast<float>(e), a = 1.0f - b;
          for (int x = 0; x < w; ++x) {
            tile[k * w + x] = tiles[(i - 1) * xs.count() + j][(h - e + k) * w + x] * a + tile[k * w + x] * b;
          }
        }
      }
      if (j > 0) {
        const int e = xs.overlaps[j - 1];
        for (int k = 0; k < e; ++k) {
          const float b = static_cast<float>(k) / static_cast<float>(e), a = 1.0f - b;
          for (int y = 0; y < h; ++y) {
            tile[y * w + k] = tiles[i * xs.count() + j - 1][y * w + w - e + k] * a + tile[y * w + k] * b;
          }
        }
      }
      for (int y = 0; y < ys.end(i) - ys.starts[i]; ++y) {
        for (int x = 0; x < xs.end(j) - xs.starts[j]; ++x) {
          canvas[(ys.starts[i] + y) * width + xs.starts[j] + x] = tile[y * w + x];
        }
      }
    }
  }
  return canvas;
}

TEST(VideoBlend, ClosedFormIsTheNaiveStitch) {
  for (const auto& [height, width] : std::map<int, int>{{480, 544}, {256, 512}, {288, 480}, {464, 32}, {768, 272}}) {
    const TileAxis ys = tile_axis(height), xs = tile_axis(width);
    std::vector<std::vector<float>> tiles;
    for (int i = 0; i < ys.count() * xs.count(); ++i) {
      std::vector<float>& tile = tiles.emplace_back(static_cast<size_t>(ys.lengths[0]) * xs.lengths[0]);
      for (size_t k = 0; k < tile.size(); ++k)
        tile[k] = static_cast<float>(i + 1) + 1e-3f * static_cast<float>(k * 7919 % 1013);
    }
    std::vector<float> got(static_cast<size_t>(height) * width);
    stitch_tiles(tiles, ys, xs, 1, got.data());
    EXPECT_EQ(got, naive_stitch(tiles, ys, xs)) << height << " x " << width;
  }
}

// Three tiles overlap at 480 px: the ramp of tile 1 is cut at 111/144 and a hard seam stands at 224 (spec vae 4.4).
TEST(VideoBlend, TripleCoverageKeepsItsSeam) {
  const TileAxis ys = tile_axis(480), xs = tile_axis(16);
  std::vector<std::vector<float>> tiles;
  for (float value : {1.0f, 2.0f, 4.0f}) tiles.emplace_back(256 * 16, value);
  std::vector<float> out(480 * 16);
  stitch_tiles(tiles, ys, xs, 1, out.data());
  const auto at = [&](int y) { return out[static_cast<size_t>(y) * 16]; };
  EXPECT_EQ(at(111), 1.0f);
  EXPECT_EQ(at(112), 1.0f);
  EXPECT_FLOAT_EQ(at(223), 1.0f + 111.0f / 144.0f);
  EXPECT_EQ(at(224), 2.0f);
  EXPECT_FLOAT_EQ(at(367), 2.0f + 2.0f * 143.0f / 144.0f);
  EXPECT_EQ(at(368), 4.0f);
}

}  // namespace
}  // namespace h3
