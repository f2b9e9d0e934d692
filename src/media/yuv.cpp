#include "media/yuv.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace h3 {
namespace {

// Which two samples of an axis of n chroma samples make luma position i, and the weight of the first.
struct Blend {
  int near = 0, far = 0;
  float weight = 1;
};

Blend blend_at(int i, int shift, bool centred, int n) {
  if (shift == 0) return {i, i, 1};
  const int near = i / 2, far = i % 2 != 0 ? near + 1 : near - 1;
  const float weight = centred ? 0.75f : i % 2 != 0 ? 0.5f : 1.0f;
  return {near, std::clamp(far, 0, n - 1), weight};
}

const uint8_t* row_of(const YuvPicture& picture, int plane, int y) {
  return picture.plane[plane] + static_cast<ptrdiff_t>(y) * picture.stride[plane];
}

uint8_t clip8(int v) { return static_cast<uint8_t>(std::clamp(v, 0, 255)); }

// One chroma row at luma width in the IJG library's integers: `a` is the nearer row, `b` the other one (the same row
// without vertical subsampling), `low` whether the luma row is the lower of its pair.
void jfif_chroma_row(const YuvPicture& picture, const uint8_t* a, const uint8_t* b, bool low, std::vector<int>& out) {
  const int n = picture.chroma_width();
  if (picture.shift_x == 0) {
    const int bias = low ? 2 : 1;
    for (int i = 0; i < n; ++i) out[i] = picture.shift_y == 0 ? a[i] : (3 * a[i] + b[i] + bias) >> 2;
    return;
  }
  if (n <= 2 || picture.shift_x > 1 || picture.shift_y > 1) {  // too narrow or not a factor of 2: both ways replicate
    for (int i = 0; i < n << picture.shift_x; ++i) out[i] = a[i >> picture.shift_x];
    return;
  }
  // Without vertical subsampling sums are of 4 (rounded by 1 and 2), with it of 16 (by 8 and 7).
  const bool both = picture.shift_y != 0;
  const int shift = both ? 4 : 2, left_bias = both ? 8 : 1, right_bias = both ? 7 : 2;
  const auto sum = [&](int i) { return both ? 3 * a[i] + b[i] : static_cast<int>(a[i]); };
  for (int i = 0; i < n; ++i) {
    const int here = sum(i);
    out[2 * i] = i > 0 ? (3 * here + sum(i - 1) + left_bias) >> shift : (4 * here + (both ? 8 : 0)) >> shift;
    out[2 * i + 1] = i + 1 < n ? (3 * here + sum(i + 1) + right_bias) >> shift : (4 * here + (both ? 7 : 0)) >> shift;
  }
}

}  // namespace

void yuv_to_rgb(const YuvPicture& picture, const YuvColour& colour, uint8_t* rgb) {
  const int width = picture.width, n = picture.chroma_width();
  const float luma_scale = colour.full ? 1 : 255.0f / 219, chroma_scale = colour.full ? 1 : 255.0f / 224;
  const float black = colour.full ? 0 : 16;
  const double kg = 1 - colour.kr - colour.kb;
  const float red = static_cast<float>(2 * (1 - colour.kr)), blue = static_cast<float>(2 * (1 - colour.kb));
  const float green_u = static_cast<float>(-colour.kb * blue / kg), green_v = static_cast<float>(-colour.kr * red / kg);
  std::vector<Blend> columns(static_cast<size_t>(width));
  for (int x = 0; x < width; ++x) columns[x] = blend_at(x, picture.shift_x, colour.centred_x, n);
  std::vector<float> mixed[2];
  for (std::vector<float>& row : mixed) row.resize(static_cast<size_t>(n));
  for (int y = 0; y < picture.height; ++y) {
    const Blend rows = blend_at(y, picture.shift_y, colour.centred_y, picture.chroma_height());
    for (int p = 0; p < 2; ++p) {
      const uint8_t* a = row_of(picture, p + 1, rows.near);
      const uint8_t* b = row_of(picture, p + 1, rows.far);
      for (int i = 0; i < n; ++i) mixed[p][i] = (a[i] * rows.weight + b[i] * (1 - rows.weight) - 128) * chroma_scale;
    }
    const uint8_t* luma = row_of(picture, 0, y);
    uint8_t* target = rgb + static_cast<size_t>(y) * width * 3;
    for (int x = 0; x < width; ++x) {
      const Blend& c = columns[x];
      const float l = (luma[x] - black) * luma_scale;
      const float u = mixed[0][c.near] * c.weight + mixed[0][c.far] * (1 - c.weight);
      const float v = mixed[1][c.near] * c.weight + mixed[1][c.far] * (1 - c.weight);
      const float out[3] = {l + red * v, l + green_u * u + green_v * v, l + blue * u};
      for (int k = 0; k < 3; ++k)
        target[3 * x + k] = static_cast<uint8_t>(std::lrint(std::clamp(out[k], 0.0f, 255.0f)));
    }
  }
}

void jfif_to_rgb(const YuvPicture& picture, uint8_t* rgb) {
  // 1.402, 1.772, 0.71414 and 0.34414 in 16-bit fixed point.
  constexpr int kHalf = 1 << 15, kRed = 91881, kBlue = 116130, kGreenV = 46802, kGreenU = 22554;
  const int n = picture.chroma_width(), rows = picture.chroma_height();
  std::vector<int> chroma[2];
  for (std::vector<int>& row : chroma) row.resize(static_cast<size_t>(n) << picture.shift_x);
  for (int y = 0; y < picture.height; ++y) {
    const bool low = picture.shift_y == 1 && y % 2 != 0;
    const int near = y >> picture.shift_y;
    const int far = picture.shift_y != 1 ? near : std::clamp(low ? near + 1 : near - 1, 0, rows - 1);
    for (int p = 0; p < 2; ++p) {
      jfif_chroma_row(picture, row_of(picture, p + 1, near), row_of(picture, p + 1, far), low, chroma[p]);
    }
    const uint8_t* luma = row_of(picture, 0, y);
    uint8_t* target = rgb + static_cast<size_t>(y) * picture.width * 3;
    for (int x = 0; x < picture.width; ++x) {
      const int u = chroma[0][x] - 128, v = chroma[1][x] - 128;
      target[3 * x] = clip8(luma[x] + ((kRed * v + kHalf) >> 16));
      target[3 * x + 1] = clip8(luma[x] + ((-kGreenU * u - kGreenV * v + kHalf) >> 16));
      target[3 * x + 2] = clip8(luma[x] + ((kBlue * u + kHalf) >> 16));
    }
  }
}

}  // namespace h3
