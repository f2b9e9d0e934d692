// Planar f32 frames to the pixel layouts that encoders take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace h3 {

// One frame as three planes in 0..1.
struct FrameView {
  const float* plane[3] = {};  // R, G, B, each [height, width]
  int width = 0, height = 0;
};
FrameView frame_view(const float* planar_rgb, int frames, int index, int width, int height);

// One 8-bit plane of a picture, with its row stride in bytes.
struct PlaneView {
  uint8_t* data = nullptr;
  ptrdiff_t stride = 0;
};

void to_rgb8(const FrameView& frame, uint8_t* rgb);  // [height, width, 3], rint(255 v)

// BT.709 limited range, 4:2:0 with the chroma sample on the left luma column. Even sizes only.
void to_yuv420(const FrameView& frame, const PlaneView planes[3]);
// BT.601 full range without subsampling, as JFIF has it (formats.md H.1).
void to_yuv444_full(const FrameView& frame, const PlaneView planes[3]);

// The EXIF orientation (1..8) applied to interleaved RGB; width and height are swapped in place for 5..8.
std::vector<uint8_t> apply_orientation(std::vector<uint8_t> rgb, int* width, int* height, int orientation);

}  // namespace h3
