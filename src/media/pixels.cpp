#include "media/pixels.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "media/media.h"

namespace h3 {
namespace {

// NaN becomes 0, so that a broken frame cannot be undefined behaviour here; the watchdog reports it.
float clamp01(float v) { return v > 0 ? (v < 1 ? v : 1) : 0; }

uint8_t round8(float v) { return static_cast<uint8_t>(std::lrint(v)); }  // half to even

// Rows of a colour matrix applied to clamped R, G, B; the result is offset + sum.
struct Matrix {
  float y[3], cb[3], cr[3];
};

// Kr, Kb of BT.709 and excursions 219 and 224 (ITU-R BT.709-6, 3.2 and 3.4).
constexpr Matrix make_matrix(double kr, double kb, double luma, double chroma) {
  const double kg = 1 - kr - kb, b = chroma / (2 * (1 - kb)), r = chroma / (2 * (1 - kr));
  return {{static_cast<float>(luma * kr), static_cast<float>(luma * kg), static_cast<float>(luma * kb)},
          {static_cast<float>(-b * kr), static_cast<float>(-b * kg), static_cast<float>(b * (1 - kb))},
          {static_cast<float>(r * (1 - kr)), static_cast<float>(-r * kg), static_cast<float>(-r * kb)}};
}
constexpr Matrix kVideo = make_matrix(0.2126, 0.0722, 219, 224);
constexpr Matrix kJpeg = make_matrix(0.299, 0.114, 255, 255);

float dot(const float m[3], float r, float g, float b) { return m[0] * r + m[1] * g + m[2] * b; }

}  // namespace

FrameView frame_view(const float* planar_rgb, int frames, int index, int width, int height) {
  FrameView view{.plane = {}, .width = width, .height = height};
  for (int c = 0; c < 3; ++c) {
    view.plane[c] = planar_rgb + (static_cast<int64_t>(c) * frames + index) * width * height;
  }
  return view;
}

void to_rgb8(const FrameView& frame, uint8_t* rgb) {
  const int64_t count = static_cast<int64_t>(frame.width) * frame.height;
  for (int c = 0; c < 3; ++c) {
    const float* plane = frame.plane[c];
    for (int64_t i = 0; i < count; ++i) rgb[3 * i + c] = round8(clamp01(plane[i]) * 255);
  }
}

Image frame_image(const float* planar_rgb, int frames, int index, int width, int height) {
  Image image{.width = width, .height = height, .rgb = {}, .warnings = {}};
  image.rgb.resize(static_cast<size_t>(width) * height * 3);
  to_rgb8(frame_view(planar_rgb, frames, index, width, height), image.rgb.data());
  return image;
}

void to_yuv420(const FrameView& frame, const PlaneView planes[3]) {
  H3_ASSERT(frame.width % 2 == 0 && frame.height % 2 == 0);
  const int width = frame.width;
  std::vector<float> average[3];  // of two rows, per colour
  for (std::vector<float>& row : average) row.resize(width);
  for (int y = 0; y < frame.height; y += 2) {
    const float* rows[2][3];
    for (int c = 0; c < 3; ++c) {
      rows[0][c] = frame.plane[c] + static_cast<int64_t>(y) * width;
      rows[1][c] = rows[0][c] + width;
      for (int x = 0; x < width; ++x) average[c][x] = (clamp01(rows[0][c][x]) + clamp01(rows[1][c][x])) * 0.5f;
    }
    for (int i = 0; i < 2; ++i) {
      uint8_t* luma = planes[0].data + (y + i) * planes[0].stride;
      for (int x = 0; x < width; ++x) {
        luma[x] = round8(16 + dot(kVideo.y, clamp01(rows[i][0][x]), clamp01(rows[i][1][x]), clamp01(rows[i][2][x])));
      }
    }
    uint8_t* cb = planes[1].data + (y / 2) * planes[1].stride;
    uint8_t* cr = planes[2].data + (y / 2) * planes[2].stride;
    for (int x = 0; x < width; x += 2) {
      float rgb[3];
      for (int c = 0; c < 3; ++c) {
        const float* row = average[c].data();
        rgb[c] = 0.25f * row[x > 0 ? x - 1 : 0] + 0.5f * row[x] + 0.25f * row[x + 1];
      }
      cb[x / 2] = round8(128 + dot(kVideo.cb, rgb[0], rgb[1], rgb[2]));
      cr[x / 2] = round8(128 + dot(kVideo.cr, rgb[0], rgb[1], rgb[2]));
    }
  }
}

void to_yuv444_full(const FrameView& frame, const PlaneView planes[3]) {
  for (int y = 0; y < frame.height; ++y) {
    const int64_t row = static_cast<int64_t>(y) * frame.width;
    for (int x = 0; x < frame.width; ++x) {
      const float r = clamp01(frame.plane[0][row + x]), g = clamp01(frame.plane[1][row + x]);
      const float b = clamp01(frame.plane[2][row + x]);
      planes[0].data[y * planes[0].stride + x] = round8(dot(kJpeg.y, r, g, b));
      // Pure blue and pure red reach 255.5.
      planes[1].data[y * planes[1].stride + x] = round8(std::fmin(128 + dot(kJpeg.cb, r, g, b), 255));
      planes[2].data[y * planes[2].stride + x] = round8(std::fmin(128 + dot(kJpeg.cr, r, g, b), 255));
    }
  }
}

std::vector<uint8_t> apply_orientation(std::vector<uint8_t> rgb, int* width, int* height, int orientation) {
  if (orientation <= 1 || orientation > 8) return rgb;
  const int w = *width, h = *height;
  const bool swap = orientation >= 5;
  const int out_w = swap ? h : w, out_h = swap ? w : h;
  std::vector<uint8_t> out(rgb.size());
  for (int y = 0; y < out_h; ++y) {
    for (int x = 0; x < out_w; ++x) {
      int sx = swap ? y : x, sy = swap ? x : y;  // 5 is the plain transpose
      if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8) sx = w - 1 - sx;
      if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7) sy = h - 1 - sy;
      const uint8_t* source = rgb.data() + (static_cast<size_t>(sy) * w + sx) * 3;
      uint8_t* target = out.data() + (static_cast<size_t>(y) * out_w + x) * 3;
      for (int c = 0; c < 3; ++c) target[c] = source[c];
    }
  }
  *width = out_w;
  *height = out_h;
  return out;
}

}  // namespace h3
