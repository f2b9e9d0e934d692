// References: from files to what the model sees, and the limits on the way (spec dit 4, conditioner 3.4, vae 8.2, 13).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/request.h"

namespace h3 {

// What of the clip to be made the references depend on.
struct ReferenceTarget {
  int width = 0, height = 0, frames = 0;  // frames as rendered: what lies beyond them is not read
  std::string image_size;                 // official | match | max
};

// What the user calls a reference and the sound given for it: their names, else their paths.
const std::string& called(const Reference& reference);
const std::string& sound_called(const Reference& reference);

// Counts and kinds, before anything is read. Error(usage).
void check_reference_list(const std::vector<Reference>& references, const ReferenceLimits& limits);

// Reads and prepares every reference. Error(usage | io | data) naming the file, its value and what is allowed.
// Colour depth, transparency and the like go to `warnings`.
std::vector<ReferenceInput> load_references(const Request& request, const ModelFacts& facts,
                                            const ReferenceTarget& target, std::vector<std::string>& warnings);

// By content: what was decoded, after it was brought to the model's size and rate.
uint64_t hash_of(const ReferenceInput& reference);

// How many of each there are to be named by tags.
struct TagCounts {
  int pictures = 0, videos = 0, sounds = 0;
};

// Tags of the prompt that name nothing and spellings that are no tag.
std::vector<std::string> unknown_tags(const std::string& prompt, const TagCounts& counts);
// References that no tag of the prompt names. The sound of a clip is named by the clip's tag too.
std::vector<std::string> unnamed_references(const std::string& prompt, const std::vector<ReferenceInput>& references);

}  // namespace h3
