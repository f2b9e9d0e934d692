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
    const std::unique_ptr<Sampler> sampler = make_sampler(std::string(name), *ops_, schedule, {video, audio});
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

TEST_F(SamplerTest, CarriedEulerEqualsTwoClockEuler) {
  const Schedule schedule = make_schedule("two-clock", {.evaluations = 4});
  EXPECT_LT(largest_difference(run("carried-euler", schedule), run("two-clock", schedule)), 4e-6);
  const Schedule six = make_schedule("two-clock", {.evaluations = 8, .video_shift = 6});
  EXPECT_LT(largest_difference(run("carried-euler", six), run("two-clock", six)), 4e-6);
}

// spec dit 6.3, worked values of beta with 8 steps.
TEST_F(SamplerTest, TheMultistepCoefficientsAreThoseOfTheTable) {
  const struct {
    double h, c2, b1, b2, decay;
  } table[] = {
      {0.0126183, -0.398192, 2.244123, -1.250406, 0.987461}, {0.0224039, -0.563219, 1.870041, -0.881160, 0.977845},
      {0.0396887, -0.564491, 1.854567, -0.874151, 0.961089}, {0.0765774, -0.518283, 1.903233, -0.940562, 0.926281},
      {0.1711736, -0.447367, 1.975613, -1.056518, 0.842675}, {0.5283952, -0.323950, 2.080810, -1.304025, 0.589550}};
  const Schedule schedule = make_schedule("beta", {.evaluations = 8});
  for (int i = 1; i <= 6; ++i) {
    const MultistepRow row = multistep_row(schedule.video.sigma, i);
    EXPECT_NEAR(row.h, table[i - 1].h, 1e-6) << i;
    EXPECT_NEAR(row.c2, table[i - 1].c2, 1e-5) << i;
    EXPECT_NEAR(row.b1, table[i - 1].b1, 3e-5) << i;
    EXPECT_NEAR(row.b2, table[i - 1].b2, 3e-5) << i;
    EXPECT_NEAR(row.decay, table[i - 1].decay, 1e-6) << i;
  }
}

// One stream of the formula in double, against the sampler's video.
TEST_F(SamplerTest, ResMultistepFollowsTheFormula) {
  const Schedule schedule = make_schedule("beta", {.evaluations = 8});
  const std::vector<double>& sigma = schedule.video.sigma;
  TorchGenerator generator(3);
  const std::vector<float> video = generator.randn(kVideo * 16);
  generator.randn(kAudio * 16);
  std::vector<double> x(video.begin(), video.end()), old(x.size());
  for (int i = 0; i < 8; ++i) {
    const std::vector<float> v = generator.randn(kVideo * 16);
    generator.randn(kAudio * 16);
    for (size_t e = 0; e < x.size(); ++e) {
      const double d = x[e] + sigma[i] * static_cast<double>(v[e]);
      if (i == 0 || i == 7) {
        x[e] += (x[e] - d) / sigma[i] * (sigma[i + 1] - sigma[i]);
      } else {
        const MultistepRow row = multistep_row(sigma, i);
        x[e] = row.decay * x[e] + row.h * (row.b1 * d + row.b2 * old[e]);
      }
      old[e] = d;
    }
  }
  const std::vector<float> got = run("res_multistep", schedule);
  EXPECT_LT(largest_difference({got.begin(), got.begin() + kVideo * 16}, {x.begin(), x.end()}), 1e-5);
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
  // The two estimates of res_multistep enter with weights of opposite sign and sizes up to 3.
  for (const std::string_view name : {"euler", "training-euler", "two-clock", "carried-euler", "res_multistep"}) {
    for (const ScheduleRow& row : schedules()) {
      const Schedule schedule = make_schedule(row.name, {.evaluations = 7});
      const Tensor video = upload_f32(device, noise.data(), {4, 16}, DType::f32, "state");
      const Tensor audio = upload_f32(device, noise.data(), {4, 16}, DType::f32, "state");
      const std::unique_ptr<Sampler> sampler = make_sampler(std::string(name), *ops_, schedule, {video, audio});
      for (int step = 0; step < 7; ++step) {
        const Tensor v = upload_f32(device, velocity.data(), {4, 16}, DType::f32, "velocity");
        const Tensor a = upload_f32(device, velocity.data(), {4, 16}, DType::f32, "velocity");
        sampler->advance(step, {v, a});
      }
      EXPECT_LT(largest_difference(download_f32(sampler->result().video), data), name == "res_multistep" ? 1e-5 : 4e-6)
          << name << " " << row.name;
      EXPECT_LT(largest_difference(download_f32(sampler->result().audio), data), name == "res_multistep" ? 1e-5 : 4e-6)
          << name << " " << row.name;
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
