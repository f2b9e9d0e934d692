// Inner seams of src/media: what the FFmpeg half implements and the built-in half calls.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "media/image_probe.h"
#include "media/media.h"
#include "media/pixels.h"

namespace h3 {

// ---- pictures (image_ffmpeg.cpp) ------------------------------------------------------------------------------------
inline constexpr size_t kPadding = 64;  // zero bytes that FFmpeg's bit readers want behind their input

// Decodes a probed PNG, JPEG or WebP, not rotated. `bytes` has kPadding zeros behind it that are not counted.
Image decode_image(std::span<const uint8_t> bytes, const ImageHeader& header, const std::string& path);
std::vector<uint8_t> encode_png(const Image& image);
std::vector<uint8_t> encode_ppm(const Image& image);  // image.cpp

// ---- clips ----------------------------------------------------------------------------------------------------------
// One output of a clip being written. Frames and sound go in; close() completes the staged files; commit() renames
// them.
class ClipSink {
 public:
  virtual ~ClipSink() = default;
  virtual void set_audio(const float* samples, int64_t count) = 0;
  virtual void add_frame(const FrameView& frame) = 0;
  virtual void close() = 0;
  virtual std::vector<std::string> commit() = 0;
};

enum class ClipKind : uint8_t { mp4, webm, avi, y4m, wav, folder };

std::unique_ptr<ClipSink> open_container_sink(ClipKind kind, const std::string& path, const ClipOptions& options);
std::unique_ptr<ClipReader> open_container_reader(const std::string& path);
Sound read_container_sound(const std::string& path, double max_seconds);
std::string read_container_comment(const std::string& path);

std::unique_ptr<ClipSink> open_wav_sink(const std::string& path, const ClipOptions& options);
std::unique_ptr<ClipSink> open_y4m_sink(const std::string& path, const ClipOptions& options);
std::unique_ptr<ClipSink> open_folder_sink(const std::string& path, const ClipOptions& options);

std::unique_ptr<ClipReader> open_y4m_reader(const std::string& path);  // nullptr when not Y4M of a kind read here
std::unique_ptr<ClipReader> open_folder_reader(const std::string& path);
Sound read_wav(const std::string& path, double max_seconds);

std::vector<uint8_t> encode_wav(const float* samples, int channels, int64_t count, int rate);  // a whole file
int16_t to_pcm16(float sample);  // round half away of 32767 v, clamped; NaN gives 0

}  // namespace h3
