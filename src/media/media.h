// Pictures, sound and clips in and out of files. FFmpeg's libraries when built with them; PPM, WAV and Y4M always.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace h3 {

struct Image {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb;           // [height, width, 3]
  std::vector<std::string> warnings;  // "alpha composited on black", "16-bit samples reduced to 8"
};

// PNG, JPEG (EXIF rotation applied), WebP, PPM; any bit depth; alpha onto black with a warning.
// Error(io) when unreadable, Error(data) when it is not a picture, naming the file.
Image read_image(const std::string& path);
void write_png(const std::string& path, const Image& image);  // PPM when the name ends so, or without FFmpeg

// Pillow's LANCZOS for 8-bit RGB, to the byte (vae.md 8.3).
Image resize_lanczos(const Image& image, int width, int height);

enum class Fit : uint8_t { stretch, cover, contain };
Image fit_to_canvas(const Image& image, int width, int height, Fit fit);

struct ClipOptions {
  int width = 0, height = 0, fps = 24;
  bool audio = true;
  int sample_rate = 32000;
  int quality = 18;         // x264 CRF (0 lossless .. 51)
  std::string metadata;     // JSON embedded in the container's comment
  std::string wav_path;     // also write the sound here when not empty
  std::string frames_dir;   // also write PNG frames here when not empty
};

// Writes a clip while it is being made; the container follows the extension. Nothing appears under `path` before finish().
class ClipWriter {
 public:
  virtual ~ClipWriter() = default;
  virtual void add_frames(const float* planar_rgb, int frames) = 0;     // [3, frames, H, W] in 0..1
  virtual void set_audio(const float* samples, int64_t count) = 0;      // [2, count], once, before or after the frames
  virtual std::vector<std::string> finish() = 0;                        // files written
};
std::unique_ptr<ClipWriter> open_clip(const std::string& path, const ClipOptions& options);
void check_clip_path(const std::string& path);  // Error(usage/io) early: unknown extension, folder missing or read-only

void write_wav(const std::string& path, const float* samples, int channels, int64_t count, int rate);
std::string read_clip_metadata(const std::string& path);  // what metadata was embedded; empty when none

struct ClipData {
  int width = 0, height = 0;
  double fps = 0;
  std::vector<std::vector<uint8_t>> frames;  // RGB
  int sample_rate = 0, channels = 0;
  std::vector<float> samples;                // [channels, n]
};
ClipData read_clip(const std::string& path);

}  // namespace h3
