// Noise schedules with separate clocks for video and sound (spec dit 6). A "step" is one model evaluation.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace h3 {

// sigma' = s b / (1 + (s - 1) b): a base level b in [0, 1] to the noise level of a stream with shift s.
double shift_level(double base, double shift);
// The noise level of the sound at the base level of the video's.
double remap_level(double video_sigma, double video_shift, double audio_shift);

// One stream's grid.
struct Grid {
  std::vector<double> sigma;  // evaluations + 1, the last is 0; f32 values except those of "two-clock"
  std::vector<float> time;    // one per evaluation; the model's time, 1 = clean
};

struct Schedule {
  std::string name;
  double video_shift = 12, audio_shift = 3;
  Grid video, audio;
  int evaluations() const { return static_cast<int>(video.time.size()); }
};

// The reference scheduler in f32: `points` grid points, terminal 0 included, so points - 1 evaluations (fewer when
// neighbours coincide, from 1200 points). Error(usage) for points < 2.
Grid diffusers_grid(int points, double shift);
// A caller's own descending levels; a terminal 0 is appended when absent.
Grid grid_of_levels(const std::vector<float>& sigma);

struct ScheduleSpec {
  int evaluations = 0;
  double video_shift = 12, audio_shift = 3;
};

struct ScheduleRow {
  const char* name;
  Schedule (*make)(const ScheduleSpec& spec);
  const char* help;
};

std::span<const ScheduleRow> schedules();
// Error(usage) for an unknown name, evaluations outside 1 .. 1000 or a shift that is not positive.
Schedule make_schedule(const std::string& name, const ScheduleSpec& spec);

// Positions of ComfyUI's tables of 1000 levels, for its `simple` and `beta` schedules (spec dit 6.3).
std::vector<int> comfy_simple_indices(int evaluations);
std::vector<int> comfy_beta_indices(int evaluations);
std::vector<float> comfy_levels(double shift);  // [1000], ascending

}  // namespace h3
