// Noise schedules as bit patterns, sampler steps with given velocities, and the mix of conditions with noise.
#include <bit>
#include <cmath>
#include <cstdlib>

#include "apps/parity/suite.h"
#include "base/error.h"
#include "sampling/noise.h"
#include "sampling/sampler.h"

namespace h3 {
namespace {

int64_t ulps(float a, float b) {
  const auto ordered = [](float value) {
    const int32_t bits = std::bit_cast<int32_t>(value);
    return static_cast<int64_t>(bits < 0 ? INT32_MIN - bits : bits);
  };
  return std::llabs(ordered(a) - ordered(b));
}

// At most one unit in the last place (golden/README 6).
// Long grids come as a hash alone.
std::string compare_bits(const std::vector<float>& got, const Json& row, const std::string& key) {
  const Json* bits_of = row.find(key);
  if (bits_of == nullptr || !bits_of->is_array() || bits_of->size() == 0) {
    const std::string hash = hex64(poly64(got.data(), static_cast<int64_t>(got.size()), 4));
    return hash == row.at(key + "_poly64").as_string() ? "" : key + "_poly64 is " + hash;
  }
  const Json& want = *bits_of;
  if (got.size() != want.size()) return strf("%zu values instead of %zu", got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const uint32_t bits = static_cast<uint32_t>(std::strtoul(want.at(i).as_string().c_str(), nullptr, 16));
    if (ulps(got[i], std::bit_cast<float>(bits)) > 1)
      return strf("value %zu is %.9g instead of bits %08x", i, got[i], bits);
  }
  return "";
}

std::vector<float> narrow(const std::vector<double>& values) { return {values.begin(), values.end()}; }

void run_grids(Suite& suite, const Json& json) {
  for (const Json& row : json.at("rows").items()) {
    const int points = static_cast<int>(row.at("grid_points").as_int());
    const double shift = row.at("shift").as_double();
    const Grid grid = diffusers_grid(points, shift);
    std::string why = compare_bits(narrow(grid.sigma), row, "sigmas");
    if (why.empty()) why = compare_bits(grid.time, row, "timesteps");
    if (static_cast<int64_t>(grid.time.size()) != row.at("evaluations").as_int()) why = "number of evaluations";
    suite.exact(strf("grid.N%d_shift%g", points, shift), why.empty(), why);
  }
  for (const Json& row : json.at("errors").items()) {
    const int points = row.at(0).is_null() ? 0 : static_cast<int>(row.at(0).as_int());
    bool refused = false;
    try {
      diffusers_grid(points, 12);
    } catch (const Error& error) {
      refused = error.code() == Code::usage;
    }
    suite.exact(strf("grid.N%d_refused", points), refused);
  }
}

// "N5_shift12": a run with stored velocities.
void run_steps(Suite& suite, const GoldenFile& file, const std::string& name) {
  const int points = std::atoi(name.c_str() + 1);
  const double shift = std::atof(name.c_str() + name.find("_shift") + 6);
  Ops& ops = suite.ops();
  Device& device = ops.device();
  const std::vector<float> velocities = file.f32(name + ".velocity"), start = file.f32(name + ".x.0");
  const int64_t width = file.info(name + ".x.0").dims.back();
  const std::vector<int64_t> dims{static_cast<int64_t>(start.size()) / width, width};

  Schedule schedule;
  schedule.video = schedule.audio = diffusers_grid(points, shift);
  const Tensor video = upload_f32(device, start.data(), dims, DType::f32, "state");
  const Tensor audio = upload_f32(device, start.data(), dims, DType::f32, "state");
  const std::unique_ptr<Sampler> sampler = make_sampler("euler", ops, schedule, {video, audio});
  for (int step = 0; step < schedule.evaluations(); ++step) {
    const float* v = velocities.data() + static_cast<size_t>(step) * start.size();
    const Tensor video_velocity = upload_f32(device, v, dims, DType::f32, "velocity");
    const Tensor audio_velocity = upload_f32(device, v, dims, DType::f32, "velocity");
    sampler->advance(step, {video_velocity, audio_velocity});
    ops.sync();
    const std::string key = name + ".x." + std::to_string(step + 1);
    if (!file.has(key)) continue;
    suite.check(key, download_f32(sampler->result().video), file.f32(key), {.rel_l2 = 1e-7, .max_abs = 1e-6});
  }
}

// The caller's levels end in the 0 that grid_of_levels would append.
void run_explicit(Suite& suite, const GoldenFile& file) {
  const Grid grid = grid_of_levels(file.f32("explicit.sigmas"));
  suite.check("explicit.sigmas", narrow(grid.sigma), file.f32("explicit.sigmas"), {.max_abs = 0});
  suite.check("explicit.timesteps", grid.time, file.f32("explicit.timesteps"), {.max_abs = 0});
}

// The stored mixes are at several times; the pipeline's is the one at the conditions' time.
void run_mix(Suite& suite, const GoldenFile& file) {
  const NoiseProfile& profile = noise_profile("diffusers");
  for (const std::string& name : file.names()) {
    if (!name.starts_with("scale_noise.t")) continue;
    const float time = std::strtof(name.c_str() + 13, nullptr);
    NoiseProfile at = profile;
    at.condition_keep = time;
    at.condition_noise = 1.0f - time;
    if (time == profile.condition_keep) at = profile;
    std::vector<float> mixed = file.f32("scale_noise.sample");
    noise_condition(at, mixed, file.f32("scale_noise.noise"));
    suite.check(name, mixed, file.f32(name), {.max_abs = 0});
  }
}

}  // namespace

void run_scheduler(Suite& suite) {
  if (suite.exists("scheduler_grids.json")) run_grids(suite, suite.json("scheduler_grids.json"));
  if (!suite.exists("scheduler.safetensors")) return;
  const GoldenFile file = suite.open("scheduler.safetensors");
  for (const std::string& name : file.names()) {
    const size_t end = name.find(".velocity");
    if (end != std::string::npos) run_steps(suite, file, name.substr(0, end));
  }
  if (file.has("explicit.sigmas")) run_explicit(suite, file);
  if (file.has("scale_noise.sample")) run_mix(suite, file);
}

}  // namespace h3
