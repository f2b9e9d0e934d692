// The whole denoising loop in f32: grids, rows after every evaluation, velocities of the first and the last.
#include <cstdlib>

#include "apps/parity/dit_case.h"
#include "apps/parity/suite.h"
#include "base/error.h"

namespace h3 {
namespace {

constexpr Limits kTrajectory{.rel_l2 = 1e-5};  // golden/README 12
constexpr Limits kOneUlp{.max_abs = 6e-8};     // grids lie in [0, 1]

void check_grid(Suite& suite, const std::string& name, const GoldenFile& file, const std::string& stream,
                const Grid& grid) {
  const std::vector<float> sigma(grid.sigma.begin(), grid.sigma.end());
  suite.check(name + ".sigmas_" + stream, sigma, file.f32("sigmas_" + stream), kOneUlp);
  suite.check(name + ".timesteps_" + stream, grid.time, file.f32("timesteps_" + stream), kOneUlp);
}

struct Stored {
  const char* name;
  View rows;
};

// "video.3", "video_velocity.0" when the file has them.
void check_stored(Suite& suite, const std::string& name, const GoldenFile& file, const std::string& suffix, int step,
                  const Streams& streams) {
  for (const Stored& stored : {Stored{"video", streams.video}, Stored{"audio", streams.audio}}) {
    const std::string key = stored.name + suffix + std::to_string(step);
    if (file.has(key)) suite.check(name + "." + key, download_f32(stored.rows), file.f32(key), kTrajectory);
  }
}

void run_one(Suite& suite, const std::string& name, const GoldenFile& file, const GoldenFile& inputs, Dit& dit) {
  Ops& ops = suite.ops();
  Device& device = ops.device();
  const DitCase c = read_dit_case(inputs);
  const int evaluations = static_cast<int>(file.f32("timesteps_video").size());
  const Schedule schedule = make_schedule("linspace", {.evaluations = evaluations});
  check_grid(suite, name, file, "video", schedule.video);
  check_grid(suite, name, file, "audio", schedule.audio);

  DitRequest request = c.request;
  request.layout = &c.layout;
  request.video_times = schedule.video.time;
  request.audio_times = schedule.audio.time;
  const Control control;
  const std::unique_ptr<DitSession> session = dit.start(std::move(request), control);
  const std::vector<int64_t> video_dims{c.layout.target_video_rows(), c.video_row};
  const std::vector<int64_t> audio_dims{c.layout.target_audio_rows(), c.audio_row};
  const Tensor video = upload_f32(device, c.video.data(), video_dims, DType::f32, "video rows");
  const Tensor audio = upload_f32(device, c.audio.data(), audio_dims, DType::f32, "audio rows");
  const Tensor video_velocity(device, DType::f32, video_dims, "video velocity");
  const Tensor audio_velocity(device, DType::f32, audio_dims, "audio velocity");
  const Streams velocity{video_velocity, audio_velocity};
  const std::unique_ptr<Sampler> sampler = make_sampler("euler", ops, schedule, {video, audio});
  check_stored(suite, name, file, ".", 0, {video, audio});
  const int64_t allocations = device.allocations();
  for (int step = 0; step < evaluations; ++step) {
    const Streams input = sampler->input(step);
    session->evaluate(step, input.video, input.audio, velocity.video, velocity.audio);
    ops.sync();
    check_stored(suite, name, file, "_velocity.", step, velocity);
    sampler->advance(step, velocity);
    ops.sync();
    check_stored(suite, name, file, ".", step + 1, {video, audio});
  }
  suite.exact(name + ".no_allocation_in_the_loop", device.allocations() == allocations);
}

}  // namespace

void run_trajectory(Suite& suite) {
  const std::vector<std::string> files = suite.files("dit_traj_", ".safetensors");
  if (files.empty()) return;
  const ToyDit toy = find_toy_dit(suite);
  if (!toy.diffusers) {
    suite.fail("toy", "the golden folder has no toy/transformer");
    return;
  }
  const Control control;
  const std::unique_ptr<Dit> dit = load_dit(suite.ops(), *toy.diffusers, {Compute::f32, DType::f32}, control);
  for (const std::string& name : files) {
    const std::string stem = name.substr(9, name.size() - 9 - std::string(".safetensors").size());  // "t2va_N5"
    const std::string inputs = "dit_" + stem.substr(0, stem.rfind("_N")) + ".safetensors";
    run_one(suite, stem, suite.open(name), suite.open(inputs), *dit);
  }
}

}  // namespace h3
