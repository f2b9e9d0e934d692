// Samplers move the latents from noise to clean. They see rows and velocities only, through Ops: every coefficient is
// on the device before the loop starts, and a step reads nothing back and allocates nothing.
#pragma once

#include <memory>
#include <span>
#include <string>

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
