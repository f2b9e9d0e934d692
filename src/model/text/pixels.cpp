#include "model/text/pixels.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace h3 {
namespace {

constexpr int64_t kFactor = kPatch * kMerge;

// Python's round(): halves go to the even neighbour.
int64_t round_even(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

void check_ratio(FrameSize size) {
  H3_ASSERT(size.height > 0 && size.width > 0);
  const double longer = static_cast<double>(std::max(size.height, size.width));
  const double shorter = static_cast<double>(std::min(size.height, size.width));
  if (longer / shorter > 200) {
    fail(Code::usage, "a picture of %lldx%lld is too elongated for the vision tower; at most 200 to 1",
         static_cast<long long>(size.width), static_cast<long long>(size.height));
  }
}

FrameSize nearest(FrameSize size) {
  return {round_even(static_cast<double>(size.height) / kFactor) * kFactor,
          round_even(static_cast<double>(size.width) / kFactor) * kFactor};
}

FrameSize shrink(FrameSize size, double beta) {
  const auto side = [beta](int64_t n) {
    return std::max(kFactor, static_cast<int64_t>(std::floor(static_cast<double>(n) / beta / kFactor)) * kFactor);
  };
  return {side(size.height), side(size.width)};
}

FrameSize grow(FrameSize size, double beta) {
  const auto side = [beta](int64_t n) {
    return static_cast<int64_t>(std::ceil(static_cast<double>(n) * beta / kFactor)) * kFactor;
  };
  return {side(size.height), side(size.width)};
}

// Keys' kernel with a = -0.5.
double cubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

// Fixed-point weights of one axis: output i = sum over j of weight[i*taps + j] * input[first[i] + j], >> precision.
struct AxisWeights {
  int taps = 0, precision = 0;
  std::vector<int64_t> first, count;
  std::vector<int16_t> weight;
};

AxisWeights axis_weights(int64_t in, int64_t out) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double support = scale >= 1 ? 2 * scale : 2;
  const double inverse = scale >= 1 ? 1 / scale : 1;
  AxisWeights axis;
  axis.taps = static_cast<int>(std::ceil(support)) * 2 + 1;
  axis.first.resize(static_cast<size_t>(out));
  axis.count.resize(static_cast<size_t>(out));
  std::vector<double> exact(static_cast<size_t>(out * axis.taps));
  double largest = 0;
  for (int64_t i = 0; i < out; ++i) {
    const double center = scale * (static_cast<double>(i) + 0.5);
    const int64_t begin = std::max<int64_t>(0, static_cast<int64_t>(center - support + 0.5));
    const int64_t end = std::min(in, static_cast<int64_t>(center + support + 0.5));
    const int64_t count = std::clamp<int64_t>(end - begin, 0, axis.taps);
    double* w = exact.data() + i * axis.taps;
    double total = 0;
    for (int64_t j = 0; j < count; ++j) {
      w[j] = cubic((static_cast<double>(j + begin) - center + 0.5) * inverse);
      total += w[j];
    }
    for (int64_t j = 0; j < count; ++j) {
      if (total != 0) w[j] /= total;
      largest = std::max(largest, w[j]);
    }
    axis.first[static_cast<size_t>(i)] = begin;
    axis.count[static_cast<size_t>(i)] = count;
  }
  // As many fraction bits as keep the largest weight inside 16 bits.
  while (axis.precision < 22 && static_cast<int>(0.5 + largest * (1 << (axis.precision + 1))) < (1 << 15)) {
    ++axis.precision;
  }
  axis.weight.resize(exact.size());
  for (size_t k = 0; k < exact.size(); ++k) {
    const double scaled = exact[k] * (1 << axis.precision);
    axis.weight[k] = static_cast<int16_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);  // halves away from zero
  }
  return axis;
}

uint8_t fixed_to_u8(int32_t sum, int precision) { return static_cast<uint8_t>(std::clamp(sum >> precision, 0, 255)); }

Picture resample_rows(const Picture& in, int width) {
  const AxisWeights axis = axis_weights(in.width, width);
  Picture out{width, in.height, std::vector<uint8_t>(static_cast<size_t>(width) * in.height * 3)};
  for (int y = 0; y < in.height; ++y) {
    const uint8_t* line = in.rgb.data() + static_cast<size_t>(y) * in.width * 3;
    uint8_t* dst = out.rgb.data() + static_cast<size_t>(y) * width * 3;
    for (int x = 0; x < width; ++x) {
      const int16_t* w = axis.weight.data() + static_cast<size_t>(x) * axis.taps;
      const uint8_t* src = line + axis.first[x] * 3;
      for (int c = 0; c < 3; ++c) {
        int32_t sum = 1 << (axis.precision - 1);
        for (int64_t j = 0; j < axis.count[x]; ++j) sum += w[j] * src[j * 3 + c];
        dst[x * 3 + c] = fixed_to_u8(sum, axis.precision);
      }
    }
  }
  return out;
}

Picture resample_columns(const Picture& in, int height) {
  const AxisWeights axis = axis_weights(in.height, height);
  const size_t stride = static_cast<size_t>(in.width) * 3;
  Picture out{in.width, height, std::vector<uint8_t>(stride * height)};
  std::vector<int32_t> sums(stride);
  for (int y = 0; y < height; ++y) {
    std::fill(sums.begin(), sums.end(), 1 << (axis.precision - 1));
    const int16_t* w = axis.weight.data() + static_cast<size_t>(y) * axis.taps;
    for (int64_t j = 0; j < axis.count[y]; ++j) {
      const uint8_t* src = in.rgb.data() + static_cast<size_t>(axis.first[y] + j) * stride;
      for (size_t k = 0; k < stride; ++k) sums[k] += w[j] * src[k];
    }
    uint8_t* dst = out.rgb.data() + static_cast<size_t>(y) * stride;
    for (size_t k = 0; k < stride; ++k) dst[k] = fixed_to_u8(sums[k], axis.precision);
  }
  return out;
}

// Writes the patches of one temporal block; `pair` are its two frames, all of one size.
void cut_patches(const Picture* const pair[kTemporalPatch], int64_t grid_h, int64_t grid_w, uint8_t* out) {
  const int64_t width = grid_w * kPatch;
  for (int64_t by = 0; by < grid_h; by += kMerge) {
    for (int64_t bx = 0; bx < grid_w; bx += kMerge) {
      for (int64_t cell = 0; cell < kMerge * kMerge; ++cell) {
        const int64_t top = (by + cell / kMerge) * kPatch, left = (bx + cell % kMerge) * kPatch;
        for (int c = 0; c < 3; ++c) {
          for (int s = 0; s < kTemporalPatch; ++s) {
            for (int y = 0; y < kPatch; ++y) {
              const uint8_t* src = pair[s]->rgb.data() + ((top + y) * width + left) * 3 + c;
              for (int x = 0; x < kPatch; ++x) *out++ = src[x * 3];
            }
          }
        }
      }
    }
  }
}

void check_picture(const Picture& picture) {
  H3_ASSERT(picture.width > 0 && picture.height > 0 &&
            picture.rgb.size() == static_cast<size_t>(picture.width) * static_cast<size_t>(picture.height) * 3);
}

}  // namespace

// The comparisons and the order of the divisions are the reference's; all of it in double.
FrameSize smart_resize_image(FrameSize size, PixelBounds bounds) {
  check_ratio(size);
  const FrameSize out = nearest(size);
  const double area = static_cast<double>(size.height) * static_cast<double>(size.width);
  if (out.height * out.width > bounds.most) return shrink(size, std::sqrt(area / static_cast<double>(bounds.most)));
  if (out.height * out.width < bounds.least) return grow(size, std::sqrt(static_cast<double>(bounds.least) / area));
  return out;
}

FrameSize smart_resize_video(int64_t frames, FrameSize size, PixelBounds bounds) {
  H3_ASSERT(frames > 0 && size.height > 0 && size.width > 0);
  if (size.height < kFactor || size.width < kFactor) {
    const double scale = std::max(static_cast<double>(kFactor) / static_cast<double>(size.height),
                                  static_cast<double>(kFactor) / static_cast<double>(size.width));
    size = {static_cast<int64_t>(static_cast<double>(size.height) * scale),
            static_cast<int64_t>(static_cast<double>(size.width) * scale)};
  }
  check_ratio(size);
  const FrameSize out = nearest(size);
  const int64_t padded = round_even(static_cast<double>(frames) / kTemporalPatch) * kTemporalPatch;
  const double volume =
      static_cast<double>(frames) * static_cast<double>(size.height) * static_cast<double>(size.width);
  const int64_t presented = padded * out.height * out.width;
  if (presented > bounds.most) return shrink(size, std::sqrt(volume / static_cast<double>(bounds.most)));
  if (presented < bounds.least) return grow(size, std::sqrt(static_cast<double>(bounds.least) / volume));
  return out;
}

// Horizontal pass first, clamped to uint8 between the passes.
Picture resize_bicubic(const Picture& picture, FrameSize size) {
  check_picture(picture);
  const int width = static_cast<int>(size.width), height = static_cast<int>(size.height);
  Picture out = picture.width == width ? picture : resample_rows(picture, width);
  return out.height == height ? out : resample_columns(out, height);
}

VisionInput prepare_image(const Picture& picture) {
  check_picture(picture);
  const FrameSize size = smart_resize_image({picture.height, picture.width});
  const Picture resized = resize_bicubic(picture, size);
  VisionInput out{.video = false, .grid_t = 1, .grid_h = size.height / kPatch, .grid_w = size.width / kPatch};
  out.patches.resize(static_cast<size_t>(out.rows() * kPatchRow));
  const Picture* pair[kTemporalPatch] = {&resized, &resized};
  cut_patches(pair, out.grid_h, out.grid_w, out.patches.data());
  return out;
}

VisionInput prepare_video(std::span<const Picture> frames) {
  H3_ASSERT(!frames.empty());
  for (const Picture& frame : frames) {
    check_picture(frame);
    if (frame.width != frames[0].width || frame.height != frames[0].height) {
      fail(Code::usage, "a reference video mixes frames of %dx%d and %dx%d", frames[0].width, frames[0].height,
           frame.width, frame.height);
    }
  }
  const int64_t count = static_cast<int64_t>(frames.size());
  const FrameSize size = smart_resize_video(count, {frames[0].height, frames[0].width});
  VisionInput out{.video = true,
                  .grid_t = (count + 1) / kTemporalPatch,
                  .grid_h = size.height / kPatch,
                  .grid_w = size.width / kPatch};
  out.patches.resize(static_cast<size_t>(out.rows() * kPatchRow));
  for (int64_t t = 0; t < out.grid_t; ++t) {
    const Picture first = resize_bicubic(frames[static_cast<size_t>(2 * t)], size);
    const Picture second = 2 * t + 1 < count ? resize_bicubic(frames[static_cast<size_t>(2 * t + 1)], size) : first;
    const Picture* pair[kTemporalPatch] = {&first, &second};
    cut_patches(pair, out.grid_h, out.grid_w, out.patches.data() + t * out.grid_h * out.grid_w * kPatchRow);
  }
  return out;
}

}  // namespace h3
