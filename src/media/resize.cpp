// Pillow's 8-bit resampling: double weights, 22-bit fixed point, horizontal pass first, 8-bit intermediate (spec
// vae 8.3).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "media/media.h"

namespace h3 {
namespace {

constexpr int kPrecisionBits = 22;
constexpr double kLobes = 3;  // half width of the Lanczos window in source pixels when enlarging
constexpr double kPi = 3.14159265358979323846;

double sinc(double t) { return t == 0 ? 1 : std::sin(t * kPi) / (t * kPi); }
double lanczos(double t) { return t >= -kLobes && t < kLobes ? sinc(t) * sinc(t / kLobes) : 0; }

// A window of output positions: where each one's taps start, how many there are, and their fixed-point weights.
struct Taps {
  std::vector<int> first, count, weight;  // weight: [window, stride]
  int stride = 0;
};

// The part of an axis of `size` positions that is wanted: only it is computed, because a cover of an extreme aspect
// discards almost everything.
struct Window {
  int size = 0, first = 0, count = 0;
};

Taps make_taps(int in, const Window& out) {
  const double scale = static_cast<double>(in) / out.size, filter_scale = std::max(scale, 1.0);
  const double support = kLobes * filter_scale, inverse = 1.0 / filter_scale;
  Taps taps;
  taps.stride = static_cast<int>(std::ceil(support)) * 2 + 1;
  taps.first.resize(out.count);
  taps.count.resize(out.count);
  taps.weight.resize(static_cast<size_t>(out.count) * taps.stride);
  std::vector<double> weights(taps.stride);
  for (int i = 0; i < out.count; ++i) {
    const double center = (out.first + i + 0.5) * scale;
    const int begin = std::max(0, static_cast<int>(center - support + 0.5));
    const int end = std::min(in, static_cast<int>(center + support + 0.5));
    double sum = 0;
    for (int k = 0; k < end - begin; ++k) {
      weights[k] = lanczos((k + begin - center + 0.5) * inverse);
      sum += weights[k];
    }
    for (int k = 0; k < end - begin; ++k) {
      if (sum != 0) weights[k] /= sum;
      const double fixed = weights[k] * (1 << kPrecisionBits);
      taps.weight[static_cast<size_t>(i) * taps.stride + k] = static_cast<int>(fixed + (weights[k] < 0 ? -0.5 : 0.5));
    }
    taps.first[i] = begin;
    taps.count[i] = end - begin;
  }
  return taps;
}

// 32 bits are enough: the weights' absolute sum stays below 1.5, so |sum| < 1.5 * 255 * 2^22 < 2^31.
uint8_t clip8(int sum) { return static_cast<uint8_t>(std::clamp(sum >> kPrecisionBits, 0, 255)); }

constexpr int kHalf = 1 << (kPrecisionBits - 1);

Image resize_rows(const Image& in, const Window& window) {
  const Taps taps = make_taps(in.width, window);
  Image out{.width = window.count, .height = in.height, .rgb = {}, .warnings = in.warnings};
  out.rgb.resize(static_cast<size_t>(out.width) * in.height * 3);
  for (int y = 0; y < in.height; ++y) {
    const uint8_t* row = in.rgb.data() + static_cast<size_t>(y) * in.width * 3;
    uint8_t* target = out.rgb.data() + static_cast<size_t>(y) * out.width * 3;
    for (int x = 0; x < out.width; ++x) {
      const int* weight = taps.weight.data() + static_cast<size_t>(x) * taps.stride;
      const uint8_t* source = row + static_cast<size_t>(taps.first[x]) * 3;
      int r = kHalf, g = kHalf, b = kHalf;
      for (int k = 0; k < taps.count[x]; ++k, source += 3) {
        r += source[0] * weight[k];
        g += source[1] * weight[k];
        b += source[2] * weight[k];
      }
      target[3 * x] = clip8(r);
      target[3 * x + 1] = clip8(g);
      target[3 * x + 2] = clip8(b);
    }
  }
  return out;
}

Image resize_columns(const Image& in, const Window& window) {
  const Taps taps = make_taps(in.height, window);
  Image out{.width = in.width, .height = window.count, .rgb = {}, .warnings = in.warnings};
  const size_t stride = static_cast<size_t>(in.width) * 3;
  out.rgb.resize(stride * out.height);
  std::vector<int> sum(stride);
  for (int y = 0; y < out.height; ++y) {
    std::fill(sum.begin(), sum.end(), kHalf);
    const int* weights = taps.weight.data() + static_cast<size_t>(y) * taps.stride;
    for (int k = 0; k < taps.count[y]; ++k) {
      const uint8_t* source = in.rgb.data() + (static_cast<size_t>(taps.first[y]) + k) * stride;
      const int weight = weights[k];
      for (size_t x = 0; x < stride; ++x) sum[x] += source[x] * weight;
    }
    uint8_t* target = out.rgb.data() + y * stride;
    for (size_t x = 0; x < stride; ++x) target[x] = clip8(sum[x]);
  }
  return out;
}

// The rectangle of `image` resized to (columns.size, rows.size); an axis that keeps its size is only cut.
Image resize_window(const Image& image, const Window& columns, const Window& rows) {
  H3_ASSERT(columns.size > 0 && rows.size > 0 && image.width > 0 && image.height > 0);
  Image out = columns.size == image.width ? image : resize_rows(image, columns);
  if (rows.size != image.height) out = resize_columns(out, rows);
  return out;
}

// Copies the overlap of `in` placed at (left, top) onto a black canvas; negative offsets crop.
Image place(const Image& in, int width, int height, int left, int top) {
  Image out{.width = width, .height = height, .rgb = {}, .warnings = in.warnings};
  out.rgb.resize(static_cast<size_t>(width) * height * 3);
  const int x0 = std::max(0, left), x1 = std::min(width, left + in.width);
  const int y0 = std::max(0, top), y1 = std::min(height, top + in.height);
  for (int y = y0; y < y1 && x0 < x1; ++y) {
    std::memcpy(out.rgb.data() + (static_cast<size_t>(y) * width + x0) * 3,
                in.rgb.data() + (static_cast<size_t>(y - top) * in.width + (x0 - left)) * 3,
                static_cast<size_t>(x1 - x0) * 3);
  }
  return out;
}

}  // namespace

Image resize_lanczos(const Image& image, int width, int height) {
  return resize_window(image, {width, 0, width}, {height, 0, height});
}

Image fit_to_canvas(const Image& image, int width, int height, Fit fit) {
  if (fit == Fit::stretch || (image.width == width && image.height == height))
    return resize_lanczos(image, width, height);
  const double sx = static_cast<double>(width) / image.width, sy = static_cast<double>(height) / image.height;
  const double scale = fit == Fit::cover ? std::max(sx, sy) : std::min(sx, sy);
  // rint rounds half to even, as the reference's round() does (spec vae 8.1).
  int w = static_cast<int>(std::rint(image.width * scale)), h = static_cast<int>(std::rint(image.height * scale));
  if (fit == Fit::cover) {
    w = std::max(width, w);
    h = std::max(height, h);
    const int left = (w - width) / 2, top = (h - height) / 2;
    const Image scaled = resize_window(image, {w, left, width}, {h, top, height});
    // An axis that kept its size is still whole.
    return place(scaled, width, height, scaled.width == width ? 0 : -left, scaled.height == height ? 0 : -top);
  }
  w = std::clamp(w, 1, width);
  h = std::clamp(h, 1, height);
  return place(resize_lanczos(image, w, h), width, height, (width - w) / 2, (height - h) / 2);
}

}  // namespace h3
