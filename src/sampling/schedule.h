// Noise schedules with separate clocks for video and sound (dit.md 6).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace h3 {

// One stream's grid: sigma has evaluations + 1 entries (the last is 0), time one per evaluation (model time, 1 = clean).
struct Grid {
  std::vector<float> sigma, time;
};

struct Schedule {
  Grid video, audio;
  int evaluations() const { return static_cast<int>(video.time.size()); }
};

// The reference scheduler: `points` grid points, terminal 0 included, so points - 1 evaluations. Error(usage) for points < 2.
Grid diffusers_grid(int points, double shift);

// Every distinct model time of a run, in the order first used: conditions add max(t_v, 0.999) and 1.0.
}  // namespace h3
