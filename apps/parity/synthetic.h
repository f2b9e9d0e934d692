// The made-up media of golden/README sections 2 and 11, exact by definition.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace h3 {

std::vector<uint8_t> synth_image(int width, int height, int seed);   // [height, width, 3]
std::vector<uint8_t> smooth_image(int width, int height, int seed);  // [height, width, 3]
// kind: "synth" or "smooth". Error(data) for any other.
std::vector<uint8_t> made_image(const std::string& kind, int width, int height, int seed);
std::vector<float> made_wave(int64_t samples, int channels, int seed);  // [channels, samples]

}  // namespace h3
