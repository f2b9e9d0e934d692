// FFmpeg's C objects with owners, its messages, and files behind its I/O. Included by src/media/*_ffmpeg.cpp only.
#pragma once

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/channel_layout.h>
#include <libavutil/cpu.h>
#include <libavutil/display.h>
#include <libavutil/imgutils.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <libswresample/swresample.h>
#include <libswscale/swscale.h>
}

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "media/files.h"

namespace h3 {

template <auto Free>
struct FreeBy {
  template <typename T>
  void operator()(T* object) const {
    Free(&object);
  }
};
struct FreeSws {
  void operator()(SwsContext* context) const { sws_freeContext(context); }
};
using AvPacket = std::unique_ptr<AVPacket, FreeBy<av_packet_free>>;
using AvFrame = std::unique_ptr<AVFrame, FreeBy<av_frame_free>>;
using AvCodec = std::unique_ptr<AVCodecContext, FreeBy<avcodec_free_context>>;
using AvSws = std::unique_ptr<SwsContext, FreeSws>;
using AvSwr = std::unique_ptr<SwrContext, FreeBy<swr_free>>;

AvPacket new_packet();
AvFrame new_frame();
AvCodec new_codec(const AVCodec* codec);

std::string av_error(int code);  // "Invalid data found when processing input"

// Collects FFmpeg's messages of error level of this thread while alive; those of other threads and times are dropped.
class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  // The first message, or FFmpeg's text for `code` when nothing was said. One line.
  std::string reason(int code) const;
  void clear() { first_.clear(); }

 private:
  friend void log_callback(void*, int, const char*, va_list);
  std::string first_;
  LogCapture* outer_;
};

// An AVFormatContext that reads a regular file through our descriptor: no protocol is ever chosen by FFmpeg and nothing
// that a playlist or reference names is opened.
class MediaInput {
 public:
  explicit MediaInput(const std::string& path);  // Error(io) unreadable, Error(data) not a clip or sound
  ~MediaInput();
  MediaInput(const MediaInput&) = delete;
  MediaInput& operator=(const MediaInput&) = delete;
  AVFormatContext* get() const { return context_; }
  const std::string& path() const { return path_; }

 private:
  static int read(void* self, uint8_t* data, int size);
  static int64_t seek(void* self, int64_t offset, int whence);

  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0, position_ = 0;
  AVIOContext* io_ = nullptr;
  AVFormatContext* context_ = nullptr;
};

// An AVFormatContext that writes to a staged file. `context` is freed with it.
class OutputFile {
 public:
  OutputFile(const std::string& path, const char* muxer);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  AVFormatContext* get() const { return context_; }
  StagedFile& file() { return file_; }
  // Turns a failed call into an Error: the write error when there was one, else FFmpeg's.
  void check(int result, const char* what, const LogCapture& log);
  void flush();  // before StagedFile::commit

 private:
  static int write(void* self, uint8_t* data, int size);
  static int64_t seek(void* self, int64_t offset, int whence);
  static int open_again(AVFormatContext* context, AVIOContext** io, const char* url, int flags, AVDictionary** options);
  static int close_again(AVFormatContext* context, AVIOContext* io);

  StagedFile file_;
  AVIOContext* io_ = nullptr;
  AVFormatContext* context_ = nullptr;
};

// Decoded frames of any pixel format to 8-bit RGB, alpha onto black, with the frame's own matrix and range. RGB, grey
// and palette formats of the target size are unpacked exactly; depths above 8 then lose their low bits, as in Pillow.
// Planar 8-bit Y'CbCr goes through yuv.h, everything else through swscale.
class RgbConverter {
 public:
  enum class Kind : uint8_t { video, jpeg, webp } kind = Kind::video;  // where untagged chroma sits
  bool deep = false, transparent = false;                              // seen so far: more than 8 bits, alpha below 1

  void convert(const AVFrame& frame, int width, int height, uint8_t* rgb, const std::string& path);

 private:
  void unpack(const AVFrame& frame, const AVPixFmtDescriptor& format, uint8_t* rgb);
  void unpack_palette(const AVFrame& frame, uint8_t* rgb);
  bool convert_planar(const AVFrame& frame, const AVPixFmtDescriptor& format, uint8_t* rgb);
  void scale(const AVFrame& frame, const AVPixFmtDescriptor& format, int width, int height, uint8_t* rgb,
             const std::string& path);
  void blend(const uint8_t* rgba, int64_t count, uint8_t* rgb);

  AvSws sws_;
  int key_[8] = {};
  std::vector<uint8_t> rgba_;
};

}  // namespace h3
