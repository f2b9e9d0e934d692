// One golden case of the denoiser (golden/README 4) and the toy checkpoint in its spellings.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/parity/suite.h"
#include "model/dit/dit.h"
#include "sampling/sampler.h"

namespace h3 {

// The toy transformer under each spelling that the golden folder holds.
struct ToyDit {
  std::optional<Component> diffusers, comfy, official, curve;
};
ToyDit find_toy_dit(const Suite& suite);

struct DitCase {
  PackedLayout layout;
  DitRequest request;               // text and condition rows; without times
  std::vector<float> video, audio;  // target rows, the noise
  int64_t video_row = 0, audio_row = 0;
};
// Reads geometry from the metadata and everything else from the in.* tensors.
DitCase read_dit_case(const GoldenFile& file);

struct Velocities {
  std::vector<float> video, audio;
};
// One evaluation at one pair of times.
Velocities evaluate(Ops& ops, Dit& dit, const DitCase& dit_case, float video_time, float audio_time,
                    const std::function<void(const char*, const View&)>& probe = {});

// The last `count` values: target rows come behind condition rows.
std::vector<float> tail_of(const std::vector<float>& values, size_t count);

}  // namespace h3
