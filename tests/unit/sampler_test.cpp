#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backends/ref/ref_ops.h"
#include "base/context.h"
#include "base/error.h"
#include "sampling/rng.h"

namespace h3 {
namespace {

constexpr int64_t kVideo = 6, kAudio = 4;

class SamplerTest : public ::testing::Test {
 protected:
  SamplerTest() : context_{pool_, log_}, ops_(make_ref_ops(context_)) {}

  // Runs a sampler over velocities drawn from one stream; returns video then audio.
  std::vector<float> run(const std::string& name, const Schedule& schedule) {
    Device& device = ops_->device();
    TorchGenerator generator(3);
    const auto draw = [&](int64_t rows) {
      return upload_f32(device, generator.randn(rows * 16).data(), {rows, 16}, DType::f32, "state");
    };
    const Tensor video = draw(kVideo), audio = draw(kAudio);
    const std::unique_ptr<Sampler> sampler = make_sampler(name, *ops_, schedule, {video, audio});
    for (int step = 0; step < schedule.evaluations(); ++step) {
      const Tensor video_velocity = draw(kVideo), audio_velocity = draw(kAudio);
      const int64_t before = device.allocations();
      sampler->input(step);
      sampler->advance(step, {video_velocity, audio_velocity});
      EXPECT_EQ(device.allocations(), before) << name;
    }
    std::vector<float> out = download_f32(sampler->result().video);
    const std::vector<float> sound = download_f32(sampler->result().audio);
    out.insert(out.end(), sound.begin(), sound.end());
    return out;
  }

  static double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
    double largest = 0;
    for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - b[i]));
    return largest;
  }

  ThreadPool pool_{1};
  Log log_;
  Context context_;
  std::unique_ptr<Ops> ops_;
};

TEST_F(SamplerTest, TheThreeEulerFormsAreTheSameMap) {
  const Schedule reference = make_schedule("linspace", {.evaluations = 4});
  const Schedule two_clock = make_schedule("two-clock", {.evaluations = 4});
  const std::vector<float> blend = run("euler", reference);
  EXPECT_LT(largest_difference(blend, run("training-euler", reference)), 2e-6);
  EXPECT_LT(largest_difference(blend, run("two-clock", two_clock)), 2e-6);
}

TEST_F(SamplerTest, TheStockSamplerMovesOnlyTheSoundDifferently) {
  const Schedule schedule = make_schedule("two-clock", {.evaluations = 4});
  const std::vector<float> ours = run("two-clock", schedule), stock = run("stock", schedule);
  const auto split = [](const std::vector<float>& all) {
    return std::pair(std::vector<float>(all.begin(), all.begin() + kVideo * 16),
                     std::vector<float>(all.begin() + kVideo * 16, all.end()));
  };
  EXPECT_EQ(split(ours).first, split(stock).first);
  EXPECT_GT(largest_difference(split(ours).second, split(stock).second), 0.1);
}

TEST_F(SamplerTest, AConstantVelocityArrivesAtItsTarget) {
  // x = noise, v = data - noise is constant along the path, so every sampler ends at the data.
  Device& device = ops_->device();
  TorchGenerator generator(5);
  const std::vector<float> noise = generator.randn(64), data = generator.randn(64);
  std::vector<float> velocity;
  for (size_t i = 0; i < 64; ++i) velocity.push_back(data[i] - noise[i]);
  for (const char* name : {"euler", "training-euler", "two-clock"}) {
    for (const ScheduleRow& row : schedules()) {
      const Schedule schedule = make_schedule(row.name, {.evaluations = 7});
      const Tensor video = upload_f32(device, noise.data(), {4, 16}, DType::f32, "state");
      const Tensor audio = upload_f32(device, noise.data(), {4, 16}, DType::f32, "state");
      const std::unique_ptr<Sampler> sampler = make_sampler(name, *ops_, schedule, {video, audio});
      for (int step = 0; step < 7; ++step) {
        const Tensor v = upload_f32(device, velocity.data(), {4, 16}, DType::f32, "velocity");
        const Tensor a = upload_f32(device, velocity.data(), {4, 16}, DType::f32, "velocity");
        sampler->advance(step, {v, a});
      }
      EXPECT_LT(largest_difference(download_f32(sampler->result().video), data), 4e-6) << name << " " << row.name;
      EXPECT_LT(largest_difference(download_f32(sampler->result().audio), data), 4e-6) << name << " " << row.name;
    }
  }
}

TEST_F(SamplerTest, UnknownNamesAreUsageErrors) {
  const Schedule schedule = make_schedule("linspace", {.evaluations = 1});
  const Tensor rows(ops_->device(), DType::f32, {1, 16}, "state");
  EXPECT_THROW(make_sampler("ancestral", *ops_, schedule, {rows, rows}), Error);
}

}  // namespace
}  // namespace h3
