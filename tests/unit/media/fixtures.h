// Made-up media for the tests of src/media: moving test frames, and files of kinds that the
// product itself does not write, made with FFmpeg's encoders.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "media/media.h"
#include "tests/support/temp_folder.h"

namespace h3 {

void write_bytes(const std::string& path, const std::vector<uint8_t>& bytes);
std::vector<uint8_t> file_bytes(const std::string& path);

// Smooth moving colours, planar [3, frames, height, width] in 0..1, frames first .. first + count - 1.
std::vector<float> moving_frames(int first, int count, int width, int height);
std::vector<float> tone(int64_t count, int rate);  // [2, count]: 440 Hz left, 660 Hz right, amplitude 0.5
double psnr(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b);
// The power of `samples` explained by a sine of this frequency at any phase, of all its power: 1 for a pure tone.
double tone_share(const float* samples, int64_t count, double frequency, int rate);

// The text of the h3::Error that `call` throws; a test failure when it throws none or it has several lines.
template <typename Call>
std::string error_of(const Call& call, Code code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    const std::string text = error.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

#if H3_HAVE_FFMPEG
// A still in any pixel format an encoder takes: "png" with "rgb48be", "pal8", "ya8" ...; "mjpeg"; "libwebp".
// Pixel (x, y) has R = 255 x / (w-1), G = 255 y / (h-1), B = 128 and, where there is alpha, 255 on the left half, 64
// right.
std::vector<uint8_t> encode_still(const char* encoder, const char* pixel_format, int width, int height);
std::vector<uint8_t> jpeg_with_orientation(int orientation, int width, int height, bool big_endian);

struct MadeClip {
  const char* muxer = "mov";
  const char* video = "mpeg4";  // nullptr = sound only
  const char* pixel_format = "yuv420p";
  const char* audio = nullptr;                // encoder name
  std::vector<int64_t> times = {0, 1, 2, 3};  // in 1/24 s, one per frame
  int width = 64, height = 48, rotation = 0;  // clockwise degrees of the display matrix
  int sample_rate = 44100, channels = 2;
  int64_t samples = 44100;
  int64_t audio_offset = 0;  // samples by which the sound starts later
  bool alpha = false;        // the upper half is half transparent
  bool cover = false;        // an attached picture before everything else
};
// Frame i is uniformly grey 40 + 20 i with its left half (as displayed before rotation) red.
void make_clip(const std::string& path, const MadeClip& clip);
#endif

}  // namespace h3
