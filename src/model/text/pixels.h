// Pixels for the vision tower: resize rule, resampling, patches (spec conditioner 4).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/text/picture.h"

namespace h3 {

inline constexpr int kPatch = 16, kTemporalPatch = 2, kMerge = 2;
inline constexpr int64_t kPatchRow = 3 * kTemporalPatch * kPatch * kPatch;  // 1536

// Pixel-count bounds of the release's processors; for a video they count the pixels of all sampled frames.
struct PixelBounds {
  int64_t least = 0, most = 0;
};
inline constexpr PixelBounds kImageBounds{65536, 16777216};
inline constexpr PixelBounds kVideoBounds{4096, 25165824};

struct FrameSize {
  int64_t height = 0, width = 0;
  bool operator==(const FrameSize&) const = default;
};

// Multiples of 32 within the bounds. Error(usage) when one side is more than 200 times the other.
FrameSize smart_resize_image(FrameSize size, PixelBounds bounds = kImageBounds);
FrameSize smart_resize_video(int64_t frames, FrameSize size, PixelBounds bounds = kVideoBounds);

// torchvision's antialiased bicubic on uint8, to the byte. The same size returns the picture unchanged.
Picture resize_bicubic(const Picture& picture, FrameSize size);

// One picture or one video, cut into patches.
struct VisionInput {
  bool video = false;
  int64_t grid_t = 1, grid_h = 0, grid_w = 0;  // temporal blocks, patch rows, patch columns
  std::vector<uint8_t> patches;                // [grid_t*grid_h*grid_w, 1536], merge block by merge block

  int64_t rows() const { return grid_t * grid_h * grid_w; }
  int64_t tokens_per_block() const { return grid_h * grid_w / (kMerge * kMerge); }
  int64_t tokens() const { return grid_t * tokens_per_block(); }
};

VisionInput prepare_image(const Picture& picture);
// Frames as sampled for the conditioner (spec 3.5); an odd last frame is paired with itself.
VisionInput prepare_video(std::span<const Picture> frames);

// (u8 - 127.5) / 127.5 in f32: rescale, mean and deviation fused as the reference does.
inline float pixel_value(uint8_t sample) { return (static_cast<float>(sample) - 127.5f) / 127.5f; }

}  // namespace h3
