// What a distilled ("turbo") adapter was trained for: the number of evaluations, the clocks and the step.
#pragma once

#include <optional>
#include <string>

#include "store/tensor_source.h"

namespace h3::lora {

struct Recipe {
  std::string name;  // "4step", "8step", "larryvrh"
  int steps = 0;
  double video_shift = 12, audio_shift = 3;
  std::string scheduler, sampler;
  double native_scale = 1;  // alpha / rank of files in the trainer's own spelling, which carry no alpha
  std::string from;         // why: "the file name", "metadata h3.turbo", "its AdaLN branches"
};

// The recipe of --turbo NAME without a file; nothing for names of other adapters.
std::optional<Recipe> recipe_named(const std::string& name);

// From metadata ("h3.turbo"), the file name, or the tensors; nothing for an adapter that changes no schedule.
std::optional<Recipe> recipe_of(const TensorSource& source, const std::string& path);

// Throws Error(data) for adapters that need what this program does not have: a trained-sparse attention (SLA, FastH3)
// or a multi-step (PDD) head. Running them as ordinary adapters gives a plausible and wrong result.
void refuse_unsupported(const TensorSource& source, const std::string& path);

}  // namespace h3::lora
