#include "sampling/schedule.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace h3 {
namespace {

constexpr int kMaxEvaluations = 1000;

std::vector<float> times_of(const std::vector<double>& sigma) {
  std::vector<float> time;
  for (size_t i = 0; i + 1 < sigma.size(); ++i) time.push_back(1.0f - static_cast<float>(sigma[i]));
  return time;
}

Schedule named(const char* name, const ScheduleSpec& spec) {
  Schedule schedule;
  schedule.name = name;
  schedule.video_shift = spec.video_shift;
  schedule.audio_shift = spec.audio_shift;
  return schedule;
}

Schedule make_linspace(const ScheduleSpec& spec) {
  Schedule schedule = named("linspace", spec);
  schedule.video = diffusers_grid(spec.evaluations + 1, spec.video_shift);
  schedule.audio = diffusers_grid(spec.evaluations + 1, spec.audio_shift);
  if (schedule.video.time.size() != schedule.audio.time.size()) {
    fail(Code::usage, "%d steps: levels of shifts %g and %g coincide differently; use fewer steps", spec.evaluations,
         spec.video_shift, spec.audio_shift);
  }
  return schedule;
}

// Positions in the table of 1000 levels, then 0. The model reads its level back through f32 multiples of 1/1000, and
// the sound is remapped from that (spec dit 6.3).
Schedule from_levels(Schedule schedule, const std::vector<double>& sigma) {
  schedule.video.sigma = sigma;
  for (double level : sigma) {
    schedule.audio.sigma.push_back(static_cast<float>(remap_level(level, schedule.video_shift, schedule.audio_shift)));
  }
  for (size_t i = 0; i + 1 < sigma.size(); ++i) {
    const float level = std::max(static_cast<float>(1000.0f * static_cast<float>(sigma[i])) / 1000.0f, 1e-6f);
    schedule.video.time.push_back(1.0f - level);
    const double audio = remap_level(level, schedule.video_shift, schedule.audio_shift);
    schedule.audio.time.push_back(1.0f - static_cast<float>(audio));
  }
  return schedule;
}

std::vector<double> levels_at(const std::vector<int>& indices, double shift) {
  const std::vector<float> table = comfy_levels(shift);
  std::vector<double> sigma;
  for (int index : indices) sigma.push_back(table[static_cast<size_t>(index)]);
  sigma.push_back(0);
  return sigma;
}

Schedule make_simple(const ScheduleSpec& spec) {
  return from_levels(named("simple", spec), levels_at(comfy_simple_indices(spec.evaluations), spec.video_shift));
}

Schedule make_beta(const ScheduleSpec& spec) {
  return from_levels(named("beta", spec), levels_at(comfy_beta_indices(spec.evaluations), spec.video_shift));
}

// stable-diffusion.cpp: positions 999 .. 0 of the table, fractions allowed (spec dit 6.5).
Schedule make_discrete(const ScheduleSpec& spec) {
  std::vector<double> sigma;
  for (int i = 0; i < spec.evaluations; ++i) {
    const double position = spec.evaluations == 1 ? 999 : 999 - i * 999.0 / (spec.evaluations - 1);
    sigma.push_back(static_cast<float>(shift_level((position + 1) / 1000, spec.video_shift)));
  }
  sigma.push_back(0);
  return from_levels(named("discrete", spec), sigma);
}

// cortiq's grid: `simple` in double, with floor division for the position (spec dit 6.4).
Schedule make_two_clock(const ScheduleSpec& spec) {
  Schedule schedule = named("two-clock", spec);
  for (int x = 0; x < spec.evaluations; ++x) {
    const int index = 999 - 1000 * x / spec.evaluations;
    const double sigma = shift_level((index + 1) / 1000.0, spec.video_shift);
    const double audio = remap_level(sigma, spec.video_shift, spec.audio_shift);
    schedule.video.sigma.push_back(sigma);
    schedule.audio.sigma.push_back(audio);
    schedule.video.time.push_back(static_cast<float>(1 - sigma));
    schedule.audio.time.push_back(static_cast<float>(1 - audio));
  }
  schedule.video.sigma.push_back(0);
  schedule.audio.sigma.push_back(0);
  return schedule;
}

constexpr ScheduleRow kSchedules[] = {
    {"linspace", make_linspace, "the reference: equal base steps, each stream shifted by its own factor"},
    {"simple", make_simple, "ComfyUI's simple: equal strides through 1000 levels"},
    {"beta", make_beta, "ComfyUI's beta: denser at both ends"},
    {"two-clock", make_two_clock, "cortiq's four-step grid, in double"},
    {"discrete", make_discrete, "stable-diffusion.cpp's default"},
};

// ---- the beta distribution with both parameters 0.6 ----
constexpr double kBetaShape = 0.6;

// Continued fraction of the regularised incomplete beta function (modified Lentz), for x < 1/2 and equal parameters.
double beta_fraction(double x) {
  constexpr double kTiny = 1e-300;
  const double a = kBetaShape, b = kBetaShape;
  double c = 1, d = 1 - (a + b) * x / (a + 1);
  d = 1 / (std::fabs(d) < kTiny ? kTiny : d);
  double value = d;
  for (int m = 1; m < 300; ++m) {
    for (int half = 0; half < 2; ++half) {
      const double numerator = half == 0 ? m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
                                         : -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
      d = 1 + numerator * d;
      d = 1 / (std::fabs(d) < kTiny ? kTiny : d);
      c = 1 + numerator / c;
      if (std::fabs(c) < kTiny) c = kTiny;
      value *= c * d;
    }
    if (std::fabs(c * d - 1) < 1e-16) break;
  }
  return value;
}

double beta_cdf(double x) {  // x in [0, 1/2]
  if (x <= 0) return 0;
  const double a = kBetaShape;
  const double scale = std::exp(a * std::log(x) + a * std::log1p(-x) + std::lgamma(2 * a) - 2 * std::lgamma(a));
  return scale * beta_fraction(x) / a;
}

// Inverse by bisection; the distribution is symmetric, so u > 1/2 mirrors and u = 1/2 is 1/2 exactly.
double beta_quantile(double u) {
  if (u == 0.5) return 0.5;
  if (u > 0.5) return 1 - beta_quantile(1 - u);
  double low = 0, high = 0.5;
  for (int i = 0; i < 200 && low < high; ++i) {
    const double middle = low + (high - low) / 2;
    if (middle == low || middle == high) break;
    (beta_cdf(middle) < u ? low : high) = middle;
  }
  return low + (high - low) / 2;
}

}  // namespace

double shift_level(double base, double shift) { return shift * base / (1 + (shift - 1) * base); }

double remap_level(double video_sigma, double video_shift, double audio_shift) {
  return shift_level(video_sigma / (video_shift + video_sigma * (1 - video_shift)), audio_shift);
}

Grid diffusers_grid(int points, double shift) {
  if (points < 2) {
    fail(Code::usage, "%d grid points: a schedule needs at least 2, one evaluation and the clean end", points);
  }
  // torch's linspace(1, 0, n) in f32 counts from both ends; its vectorised build contracts start + step * i.
  const float step = -1.0f / static_cast<float>(points - 1);
  const float s = static_cast<float>(shift), s1 = static_cast<float>(shift - 1);
  std::vector<double> sigma;
  for (int i = 0; i < points; ++i) {
    const float base =
        i < points / 2 ? std::fma(step, static_cast<float>(i), 1.0f) : -(step * static_cast<float>(points - 1 - i));
    const float scaled = s1 * base;
    const float level = (s * base) / (1.0f + scaled);
    if (sigma.empty() || sigma.back() != level) sigma.push_back(level);
  }
  Grid grid;
  grid.time = times_of(sigma);
  grid.sigma = std::move(sigma);
  return grid;
}

Grid grid_of_levels(const std::vector<float>& sigma) {
  Grid grid;
  grid.sigma.assign(sigma.begin(), sigma.end());
  if (grid.sigma.empty() || grid.sigma.back() != 0) grid.sigma.push_back(0);
  for (size_t i = 0; i + 1 < grid.sigma.size(); ++i) {
    if (!(grid.sigma[i] > grid.sigma[i + 1] && grid.sigma[i] <= 1)) {
      fail(Code::usage, "noise level %zu is %g: levels must fall from at most 1 to 0", i, grid.sigma[i]);
    }
  }
  if (grid.sigma.size() < 2) fail(Code::usage, "a schedule needs at least one noise level above 0");
  grid.time = times_of(grid.sigma);
  return grid;
}

std::vector<float> comfy_levels(double shift) {
  std::vector<float> levels;
  const float s = static_cast<float>(shift), s1 = static_cast<float>(shift - 1);
  for (int k = 1; k <= 1000; ++k) {
    const float base = static_cast<float>(k) / 1000.0f;
    const float scaled = s1 * base;
    levels.push_back((s * base) / (1.0f + scaled));
  }
  return levels;
}

std::vector<int> comfy_simple_indices(int evaluations) {
  std::vector<int> indices;
  const double stride = 1000.0 / evaluations;
  for (int x = 0; x < evaluations; ++x) indices.push_back(999 - static_cast<int>(x * stride));
  return indices;
}

std::vector<int> comfy_beta_indices(int evaluations) {
  std::vector<int> indices;
  for (int x = 0; x < evaluations; ++x) {
    const double u = 2 * x == evaluations ? 0.5 : 1 - static_cast<double>(x) / evaluations;
    const int index = static_cast<int>(std::nearbyint(999 * beta_quantile(u)));  // ties to even: 499.5 is 500
    if (indices.empty() || indices.back() != index) indices.push_back(index);
  }
  return indices;
}

std::span<const ScheduleRow> schedules() { return kSchedules; }

Schedule make_schedule(const std::string& name, const ScheduleSpec& spec) {
  if (spec.evaluations < 1 || spec.evaluations > kMaxEvaluations) {
    fail(Code::usage, "%d steps: a run takes 1 to %d; 4 with a turbo model, 27 without is usual", spec.evaluations,
         kMaxEvaluations);
  }
  for (double shift : {spec.video_shift, spec.audio_shift}) {
    if (!(shift > 0 && shift <= 1000)) fail(Code::usage, "shift %g: must be above 0 and at most 1000", shift);
  }
  std::string known;
  for (const ScheduleRow& row : kSchedules) {
    if (name == row.name) return row.make(spec);
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  fail(Code::usage, "unknown scheduler '%s'; known: %s", name.c_str(), known.c_str());
}

}  // namespace h3
