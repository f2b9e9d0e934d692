// 8-bit planar Y'CbCr to R'G'B', by our own arithmetic: the same on every machine, and for JPEG the same as the IJG
// library's, so that a keyframe gives the pixels that the reference sees.
#pragma once

#include <cstddef>
#include <cstdint>

namespace h3 {

struct YuvPicture {
  const uint8_t* plane[3] = {};
  ptrdiff_t stride[3] = {};
  int width = 0, height = 0;
  int shift_x = 0, shift_y = 0;  // log2 of the chroma subsampling; more than 1 only for jfif_to_rgb

  int chroma_width() const { return (width + (1 << shift_x) - 1) >> shift_x; }
  int chroma_height() const { return (height + (1 << shift_y) - 1) >> shift_y; }
};

struct YuvColour {
  double kr = 0.2126, kb = 0.0722;           // BT.709; BT.601 is 0.299, 0.114
  bool full = false;                         // 0..255 instead of 16..235 and 16..240
  bool centred_x = false, centred_y = true;  // chroma between two luma samples, or on the first of them
};

// Linear interpolation of chroma, f32, round to nearest.
void yuv_to_rgb(const YuvPicture& picture, const YuvColour& colour, uint8_t* rgb);

// JFIF: BT.601 full range, fixed point and chroma as in the IJG library's default decoder: triangle interpolation for
// factors of 2, replication for others.
void jfif_to_rgb(const YuvPicture& picture, uint8_t* rgb);

}  // namespace h3
