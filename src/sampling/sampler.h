// Samplers move the latents from noise to clean. They see rows and velocities only, through Ops: every coefficient is
// on the device before the loop starts, and a step reads nothing back and allocates nothing.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops/ops.h"
#include "sampling/schedule.h"

namespace h3 {

// The two streams: video [Nv, 4 C] and audio [Na, C], f32, contiguous, on the device of the Ops.
struct Streams {
  View video, audio;
};

class Sampler {
 public:
  virtual ~Sampler() = default;
  // What the model reads at evaluation `step`; valid until advance(step).
  virtual Streams input(int step) = 0;
  // Moves the state with the data-ward velocities of evaluation `step`, whose memory may be used as scratch.
  virtual void advance(int step, const Streams& velocity) = 0;
  // The clean latents, after the last advance.
  virtual Streams result() = 0;
};

// Exponential integrator of second order between the levels sigma[i] and sigma[i + 1], neither 0, with the model's
// estimates of steps i and i - 1 (spec dit 6.3): x = decay x + h (b1 D_i + b2 D_{i-1}). In double.
struct MultistepRow {
  double h = 0, c2 = 0, b1 = 0, b2 = 0, decay = 0;
};
MultistepRow multistep_row(const std::vector<double>& sigma, int step);

struct SamplerRow {
  const char* name;
  // `state` holds the noise (level 1) and is moved in place.
  std::unique_ptr<Sampler> (*make)(Ops& ops, const Schedule& schedule, const Streams& state);
  const char* help;
};

std::span<const SamplerRow> samplers();
// Error(usage) for an unknown name.
std::unique_ptr<Sampler> make_sampler(const std::string& name, Ops& ops, const Schedule& schedule,
                                      const Streams& state);

}  // namespace h3
