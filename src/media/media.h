// Pictures, sound and clips in and out of files. FFmpeg's libraries when built with them; PPM, PNG (out), WAV and Y4M
// always. Every file is written aside and renamed when it is complete. Errors name the file; FFmpeg's own messages
// become part of them and are never printed (its process-wide log callback is replaced on first use).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace h3 {

// ---- pictures -------------------------------------------------------------------------------------------------------
struct Image {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb;           // [height, width, 3]
  std::vector<std::string> warnings;  // "cat.png: alpha composited on black", "cat.png: 16-bit samples reduced to 8"
};

// PNG, JPEG and WebP (EXIF rotation applied), PPM and PGM; any bit depth; alpha onto black with a warning.
// Error(io) when unreadable, Error(data) when it is not a picture, is truncated or too large, naming the file.
Image read_image(const std::string& path);
Image read_image(std::span<const std::byte> file, const std::string& name);  // the same from memory; name for messages
void write_png(const std::string& path, const Image& image);                 // PPM when the name ends in .ppm

// Pillow's LANCZOS for 8-bit RGB, to the byte (vae.md 8.3).
Image resize_lanczos(const Image& image, int width, int height);

// stretch: aspect ignored. cover: scaled to fill, centre-cropped (vae.md 8.1). contain: scaled to fit, centred on
// black.
enum class Fit : uint8_t { stretch, cover, contain };
Image fit_to_canvas(const Image& image, int width, int height, Fit fit);

// Frame `index` of planar [3, frames, height, width] f32 in 0..1 as 8-bit: round half to even of 255 v (vae.md 9).
Image frame_image(const float* planar_rgb, int frames, int index, int width, int height);

// ---- clips out ------------------------------------------------------------------------------------------------------
struct ClipOptions {
  int width = 0, height = 0, fps = 24;
  bool audio = true;
  int sample_rate = 32000;
  int quality = 18;        // x264 CRF (0 lossless .. 51); mapped for the other codecs
  std::string metadata;    // JSON embedded in the container's comment (a .json beside Y4M and picture sequences)
  std::string wav_path;    // also write the sound here when not empty
  std::string frames_dir;  // also write numbered PNG frames here when not empty
};

// Writes a clip while it is being made. The container follows the path: .mp4 (H.264 + AAC), .webm (VP9 + Opus), .avi
// (MJPEG + PCM, and a .wav beside it), .y4m (raw, and a .wav beside it), .wav (sound only), or a folder when it ends in
// "/" (frame_0000.png ..., .ppm without FFmpeg, and sound.wav). Nothing appears under any of the names before
// finish(); a writer that is destroyed unfinished removes what it wrote. Equal inputs give equal bytes on one machine.
// Memory does not grow with the number of frames, which is why the sound comes first.
class ClipWriter {
 public:
  virtual ~ClipWriter() = default;
  // [2, count] f32 in -1..1; once, before the first frame, when options.audio is set; never otherwise.
  virtual void set_audio(const float* samples, int64_t count) = 0;
  virtual void add_frames(const float* planar_rgb, int frames) = 0;  // [3, frames, H, W] in 0..1, in order
  virtual std::vector<std::string> finish() = 0;                     // files written, the clip first
};
std::unique_ptr<ClipWriter> open_clip(const std::string& path, const ClipOptions& options);
// Early refusals, before any work: Error(usage) for an unknown extension or one this build cannot write, Error(io) for
// a missing or read-only folder. open_clip checks the same.
void check_clip_path(const std::string& path);
std::string clip_extensions();  // ".mp4, .webm, .avi, .y4m, .wav or folder/", what this build writes

// 16-bit PCM: round half away of 32767 v, v clamped to -1..1 (formats.md H.2). samples [channels, count].
void write_wav(const std::string& path, const float* samples, int channels, int64_t count, int rate);

// ---- clips in -------------------------------------------------------------------------------------------------------
// What metadata was embedded in a clip (or lies beside it); empty when there is none.
std::string read_clip_metadata(const std::string& path);

struct ClipInfo {
  int width = 0, height = 0;          // upright, square pixels; 0 without pictures
  double fps = 0;                     // average, as the container declares it
  double seconds = 0;                 // as the container declares it; 0 when unknown
  int sample_rate = 0, channels = 0;  // 0 without sound
};

// Frames of a clip one by one: rotation applied, cover art ignored, any bit depth, alpha onto black.
class ClipReader {
 public:
  virtual ~ClipReader() = default;
  virtual const ClipInfo& info() const = 0;
  // The next frame and its time in seconds from the first one (variable frame rates keep their times). False at the
  // end.
  virtual bool next(Image& frame, double& time) = 0;
  virtual const std::vector<std::string>& warnings() const = 0;
};
std::unique_ptr<ClipReader> open_clip_reader(const std::string& path);

struct Sound {
  int sample_rate = 0, channels = 0;
  int64_t count = 0;           // samples per channel
  std::vector<float> samples;  // [channels, count]; empty when the file has no sound
  std::vector<std::string> warnings;
};
// The first soundtrack of any file at its own rate and channel count, aligned to the first frame when there are frames.
Sound read_sound(const std::string& path, double max_seconds = 0);  // 0 = all

struct ClipLimits {
  double max_seconds = 0;                // read no further; 0 = all
  int64_t max_bytes = int64_t{8} << 30;  // of decoded pixels; more is Error(memory)
};
struct ClipData {
  int width = 0, height = 0;
  double fps = 0;
  std::vector<std::vector<uint8_t>> frames;  // RGB, all [height, width, 3]
  std::vector<double> times;                 // seconds, one per frame, from 0
  int sample_rate = 0, channels = 0;
  std::vector<float> samples;  // [channels, n]
  std::vector<std::string> warnings;
};
ClipData read_clip(const std::string& path, const ClipLimits& limits = {});

}  // namespace h3
