#include "apps/parity/synthetic.h"

#include <algorithm>

#include "base/error.h"

namespace h3 {
namespace {

template <typename Pixel>
std::vector<uint8_t> draw(int width, int height, const Pixel& pixel) {
  std::vector<uint8_t> out(static_cast<size_t>(width) * static_cast<size_t>(height) * 3);
  uint8_t* dst = out.data();
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x, dst += 3) pixel(x, y, dst);
  }
  return out;
}

}  // namespace

std::vector<uint8_t> synth_image(int width, int height, int seed) {
  return draw(width, height, [seed](int x, int y, uint8_t* rgb) {
    rgb[0] = static_cast<uint8_t>(3 * x + 5 * y + 17 * seed);
    rgb[1] = static_cast<uint8_t>(x * y + 29 * seed);
    rgb[2] = static_cast<uint8_t>(7 * (x ^ y) + 3 * seed);
  });
}

std::vector<uint8_t> smooth_image(int width, int height, int seed) {
  return draw(width, height, [=](int x, int y, uint8_t* rgb) {
    rgb[0] = static_cast<uint8_t>(x * 255 / std::max(1, width - 1));
    rgb[1] = static_cast<uint8_t>(y * 255 / std::max(1, height - 1));
    rgb[2] = static_cast<uint8_t>((x + y + 37 * seed) * 2);
  });
}

std::vector<uint8_t> made_image(const std::string& kind, int width, int height, int seed) {
  if (kind == "synth") return synth_image(width, height, seed);
  if (kind == "smooth") return smooth_image(width, height, seed);
  fail(Code::data, "golden image kind '%s'; known are synth and smooth", kind.c_str());
}

std::vector<float> made_wave(int64_t samples, int channels, int seed) {
  std::vector<float> out;
  for (int c = 0; c < channels; ++c) {
    for (int64_t i = 0; i < samples; ++i) {
      const int64_t value = 16 * ((37 + c + seed) * i % 401 - 200) + (i * i % 1009 - 504);
      out.push_back(static_cast<float>(value) / 4096.0f);
    }
  }
  return out;
}

}  // namespace h3
