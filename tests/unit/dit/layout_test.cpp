#include "model/dit/layout.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace h3 {
namespace {

LayoutSpec release_spec(int text_rows) {
  LayoutSpec spec;
  spec.text_tags.assign(static_cast<size_t>(text_rows), 1);
  spec.latent_frames = 37;
  spec.latent_height = 48;
  spec.latent_width = 84;
  spec.audio_latents = 207;
  return spec;
}

LayoutBlock keyframe(LayoutBlock::Kind kind) { return {kind, 1, 48, 84, 0}; }

void expect_position(const PackedLayout& layout, int64_t row, double time, double height, double width) {
  EXPECT_NEAR(layout.position[row * 3], time, 5e-9) << row;
  EXPECT_NEAR(layout.position[row * 3 + 1], height, 5e-9) << row;
  EXPECT_NEAR(layout.position[row * 3 + 2], width, 5e-9) << row;
}

TEST(Layout, ReleaseSizeTextToVideo) {
  const PackedLayout layout = build_layout(release_spec(16));
  EXPECT_EQ(layout.rows, 37726);
  EXPECT_EQ(layout.audio_rows.front(), 16);
  EXPECT_EQ(layout.audio_rows.back(), 429);
  EXPECT_EQ(layout.video_rows.front(), 430);
  EXPECT_EQ(layout.video_rows.back(), 37725);
  EXPECT_EQ(layout.first_target(), 16);
  expect_position(layout, 16, 16, 0, -5.16601049);
  expect_position(layout, 16 + 207, 16, 0, 36.15810523);
  expect_position(layout, 430, 16, 3.90513686, -5.16601049);
  const double times[] = {16, 17.66666667, 24.33333333, 31, 37.66666667, 44.33333333, 46};
  for (int frame = 0; frame < 7; ++frame) EXPECT_NEAR(layout.position[(430 + frame * 1008) * 3], times[frame], 5e-9);
}

TEST(Layout, KeyframesStandOnTheTargetsClock) {
  LayoutSpec spec = release_spec(16);
  spec.blocks = {keyframe(LayoutBlock::Kind::first_frame), keyframe(LayoutBlock::Kind::last_frame)};
  const PackedLayout layout = build_layout(spec);
  EXPECT_EQ(layout.rows, 39742);
  EXPECT_EQ(layout.condition_video_rows, 2016);
  EXPECT_EQ(layout.position[16 * 3], 16);
  EXPECT_NEAR(layout.position[1024 * 3], 221, 1e-9);
  EXPECT_EQ(layout.position[2032 * 3], 16);  // the target starts where the text ends
  EXPECT_EQ(layout.first_target(), 2032);
}

TEST(Layout, DistinctTimesOfAStep) {
  LayoutSpec spec = release_spec(16);
  spec.text_tags[3] = 0;  // a row of a vision block
  spec.blocks = {keyframe(LayoutBlock::Kind::first_frame)};
  const PackedLayout layout = build_layout(spec);
  const RowTimes times = row_times(layout, 1 - 0.97297299f, 1 - 0.89999998f);
  ASSERT_EQ(times.times.size(), 3u);
  EXPECT_FLOAT_EQ(times.times[0], 0.02702701f);
  EXPECT_FLOAT_EQ(times.times[1], 0.10000002f);
  EXPECT_FLOAT_EQ(times.times[2], 0.999f);
  const auto table_row = [&](int64_t row) { return times.index[row] * 3 + layout.tags[row]; };
  EXPECT_EQ(table_row(0), 1);   // text
  EXPECT_EQ(table_row(3), 0);   // vision rows read the video's time
  EXPECT_EQ(table_row(16), 6);  // keyframe
  EXPECT_EQ(table_row(layout.audio_rows[0]), 5);
  EXPECT_EQ(table_row(layout.rows - 1), 0);
}

TEST(Layout, ReferencesPushTheClock) {
  using Kind = LayoutBlock::Kind;
  LayoutSpec spec;
  spec.text_tags.assign(7, 1);
  spec.latent_frames = 2;
  spec.latent_height = spec.latent_width = 4;
  spec.audio_latents = 8;
  spec.blocks = {
      {Kind::image, 1, 4, 4, 0}, {Kind::audio, 0, 0, 0, 4}, {Kind::video, 2, 4, 2, 3}, {Kind::video, 2, 2, 4, 0}};
  const PackedLayout layout = build_layout(spec);
  const auto time = [&](int64_t row) { return layout.position[row * 3]; };
  EXPECT_EQ(time(7), 7);                         // image
  EXPECT_EQ(time(11), 8);                        // audio, first latent
  EXPECT_EQ(time(14), 11);                       // audio, last latent
  EXPECT_EQ(time(19), 12);                       // the video's soundtrack
  EXPECT_EQ(time(25), 12);                       // the video
  EXPECT_NEAR(time(29), 20.0 + 1.0 / 3, 1e-12);  // silent video
  EXPECT_NEAR(time(33), 28.0 + 2.0 / 3, 1e-12);  // target
  EXPECT_EQ(layout.first_target(), 33);
  EXPECT_EQ(layout.condition_video_rows, 4 + 2 * 2 + 2 * 2);
  EXPECT_EQ(layout.condition_audio_rows, 8 + 6);
}

TEST(Layout, FrameGrid) {
  const int grid[][3] = {{5, 2, 8}, {22, 7, 37}, {39, 12, 65}, {124, 37, 207}, {345, 102, 575}, {362, 107, 603}};
  for (const auto& row : grid) {
    EXPECT_EQ(align_frames(row[0]), row[0]);
    EXPECT_EQ(latent_frames(row[0]), row[1]);
    EXPECT_EQ(audio_latents(row[0]), row[2]);
  }
  EXPECT_EQ(align_frames(-3), 5);
  EXPECT_EQ(align_frames(6), 22);
}

TEST(Layout, CanvasOfAspect) {
  const int table[][4] = {{16, 9, 1344, 768}, {9, 16, 768, 1344}, {1, 1, 768, 768},   {4, 3, 1024, 768},
                          {3, 2, 1152, 768},  {2, 1, 1440, 704},  {21, 9, 1536, 672}, {4, 1, 2016, 512}};
  for (const auto& row : table) {
    const Canvas canvas = canvas_for_aspect(row[0], row[1]);
    EXPECT_EQ(canvas.width, row[2]);
    EXPECT_EQ(canvas.height, row[3]);
  }
  EXPECT_THROW(canvas_for_aspect(5, 1), Error);
}

TEST(Layout, OddLatentsAreAnError) {
  LayoutSpec spec = release_spec(4);
  spec.latent_height = 47;
  EXPECT_THROW(build_layout(spec), Error);
}

}  // namespace
}  // namespace h3
