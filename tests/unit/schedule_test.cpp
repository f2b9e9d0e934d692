#include "sampling/schedule.h"

#include <gtest/gtest.h>

#include <bit>

#include "base/error.h"

namespace h3 {
namespace {

std::vector<uint32_t> bits(const std::vector<double>& sigma, size_t first, size_t count) {
  std::vector<uint32_t> out;
  for (size_t i = first; i < first + count; ++i) out.push_back(std::bit_cast<uint32_t>(static_cast<float>(sigma[i])));
  return out;
}

using Bits = std::vector<uint32_t>;

TEST(Schedule, ReferenceGridBits) {
  EXPECT_EQ(bits(diffusers_grid(5, 12).sigma, 1, 3), (Bits{0x3f7914c2, 0x3f6c4ec5, 0x3f4ccccd}));
  EXPECT_EQ(bits(diffusers_grid(9, 12).sigma, 1, 7),
            (Bits{0x3f7cfcfd, 0x3f7914c2, 0x3f73cf3d, 0x3f6c4ec5, 0x3f60c7ce, 0x3f4ccccd, 0x3f21af28}));
  EXPECT_EQ(bits(diffusers_grid(5, 6).sigma, 1, 3), (Bits{0x3f7286bd, 0x3f5b6db7, 0x3f2aaaab}));
  EXPECT_EQ(bits(diffusers_grid(5, 3).sigma, 1, 3), (Bits{0x3f666666, 0x3f400000, 0x3f000000}));
}

TEST(Schedule, ReferenceGridValues) {
  const Grid video = diffusers_grid(28, 12), audio = diffusers_grid(28, 3);
  ASSERT_EQ(video.sigma.size(), 28u);
  EXPECT_EQ(video.time.size(), 27u);
  EXPECT_NEAR(video.sigma[1], 0.99680501, 1e-8);
  EXPECT_NEAR(video.sigma[26], 0.31578949, 1e-8);
  EXPECT_NEAR(audio.sigma[13], 0.76363641, 1e-8);
  EXPECT_EQ(video.sigma[0], 1);
  EXPECT_EQ(video.sigma[27], 0);
  EXPECT_EQ(video.time[0], 0);
}

TEST(Schedule, FewerThanTwoPointsIsAnError) { EXPECT_THROW(diffusers_grid(1, 12), Error); }

TEST(Schedule, SimpleIndices) {
  EXPECT_EQ(comfy_simple_indices(16),
            (std::vector<int>{999, 937, 874, 812, 749, 687, 624, 562, 499, 437, 374, 312, 249, 187, 124, 62}));
  EXPECT_EQ(comfy_simple_indices(28),
            (std::vector<int>{999, 964, 928, 892, 857, 821, 785, 749, 714, 678, 642, 607, 571, 535,
                              499, 464, 428, 392, 357, 321, 285, 249, 214, 178, 142, 107, 71,  35}));
}

TEST(Schedule, BetaIndices) {
  EXPECT_EQ(comfy_beta_indices(4), (std::vector<int>{999, 823, 500, 176}));
  EXPECT_EQ(comfy_beta_indices(30),
            (std::vector<int>{999, 993, 979, 959, 936, 908, 876, 842, 805, 765, 724, 681, 637, 591, 546,
                              500, 453, 408, 362, 318, 275, 234, 194, 157, 123, 91,  63,  40,  20,  6}));
  EXPECT_EQ(comfy_beta_indices(50),
            (std::vector<int>{999, 996, 990, 982, 972, 959, 946, 930, 913, 895, 876, 856, 835, 812, 789, 765, 741,
                              715, 690, 663, 637, 610, 582, 555, 527, 500, 472, 444, 417, 389, 362, 336, 309, 284,
                              258, 234, 210, 187, 164, 143, 123, 104, 86,  69,  53,  40,  27,  17,  9,   3}));
  EXPECT_EQ(comfy_beta_indices(138).size(), 138u);
  EXPECT_EQ(comfy_beta_indices(139).size(), 138u);  // the first duplicate
}

TEST(Schedule, ComfyLevels) {
  const std::vector<float> levels = comfy_levels(12);
  ASSERT_EQ(levels.size(), 1000u);
  EXPECT_EQ(std::bit_cast<uint32_t>(levels[0]), 0x3c427806u);
  EXPECT_EQ(levels[999], 1.0f);
  const Schedule beta = make_schedule("beta", {.evaluations = 4});
  const double video[] = {1, .9825119, .9233605, .7207330, 0}, audio[] = {1, .9335348, .7507494, .3921714, 0};
  for (int i = 0; i < 5; ++i) {
    EXPECT_NEAR(beta.video.sigma[i], video[i], 6e-8) << i;
    EXPECT_NEAR(beta.audio.sigma[i], audio[i], 6e-8) << i;
  }
}

TEST(Schedule, TwoClockGrid) {
  const Schedule schedule = make_schedule("two-clock", {.evaluations = 4});
  const double video[] = {1, 72.0 / 74, 12.0 / 13, 0.8, 0}, audio[] = {1, 0.9, 0.75, 0.5, 0};
  for (int i = 0; i < 5; ++i) {
    EXPECT_NEAR(schedule.video.sigma[i], video[i], 1e-12) << i;
    EXPECT_NEAR(schedule.audio.sigma[i], audio[i], 1e-12) << i;
  }
  EXPECT_EQ(schedule.audio.time[3], 0.5f);
}

TEST(Schedule, Remap) {
  EXPECT_NEAR(remap_level(36.0 / 37, 12, 3), 0.9, 1e-12);
  EXPECT_NEAR(remap_level(0.8, 12, 3), 0.5, 1e-12);
  EXPECT_EQ(remap_level(0, 12, 3), 0);
  EXPECT_EQ(remap_level(1, 12, 3), 1);
}

TEST(Schedule, UsageErrors) {
  EXPECT_THROW(make_schedule("linspace", {.evaluations = 0}), Error);
  EXPECT_THROW(make_schedule("linspace", {.evaluations = 1001}), Error);
  EXPECT_THROW(make_schedule("karras", {.evaluations = 4}), Error);
  EXPECT_THROW(make_schedule("simple", {.evaluations = 4, .video_shift = 0}), Error);
  EXPECT_THROW(grid_of_levels({0.5f, 0.75f}), Error);
  EXPECT_THROW(grid_of_levels({}), Error);
}

TEST(Schedule, EverySchedulesEndsClean) {
  for (const ScheduleRow& row : schedules()) {
    for (int evaluations : {1, 2, 4, 20, 50}) {
      const Schedule schedule = make_schedule(row.name, {.evaluations = evaluations});
      EXPECT_EQ(schedule.evaluations(), evaluations) << row.name;
      EXPECT_EQ(schedule.audio.time.size(), schedule.video.time.size()) << row.name;
      EXPECT_EQ(schedule.video.sigma.front(), 1) << row.name;
      EXPECT_EQ(schedule.video.sigma.back(), 0) << row.name;
      EXPECT_EQ(schedule.audio.sigma.back(), 0) << row.name;
      for (int i = 0; i < evaluations; ++i) EXPECT_GT(schedule.video.sigma[i], schedule.video.sigma[i + 1]) << row.name;
    }
  }
}

}  // namespace
}  // namespace h3
