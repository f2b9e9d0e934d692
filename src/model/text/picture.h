// Pictures as the conditioner takes them.
#pragma once

#include <cstdint>
#include <vector>

namespace h3 {

// 8-bit RGB, interleaved, row-major.
struct Picture {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb;  // [height, width, 3]
};

// One entry of the presentation, in request order.
struct PromptMedia {
  enum class Kind : uint8_t { image, video, audio } kind = Kind::image;
  // image: one; audio: none; video: one entry per frame at 24 fps, of which only those that the conditioner sees
  // (conditioner_frames) need pixels.
  std::vector<Picture> frames;
  bool has_sound = false;       // video: consumes an <Audio j> label first
};

}  // namespace h3
