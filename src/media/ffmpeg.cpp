#if H3_HAVE_FFMPEG

#include "media/ffmpeg.h"

#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <new>
#include <utility>

namespace h3 {
namespace {

constexpr int kIoBytes = 1 << 16;

thread_local LogCapture* current_capture = nullptr;

// Containers a user may name. Anything that refers to other files or devices (playlists, concat scripts, image
// sequences, capture devices) is left out.
constexpr const char* kContainers =
    "mov,matroska,webm,avi,flv,mpegts,mpeg,mpegvideo,asf,mxf,ogg,gif,apng,yuv4mpegpipe,wav,w64,aiff,au,caf,flac,mp3,"
    "aac,"
    "ac3,eac3,amr,ape,wv,tta,ivf,h264,hevc,av1,obu,dv,nut,rm";

AVIOContext* new_io(void* self, bool writes, int (*read)(void*, uint8_t*, int), int (*write)(void*, uint8_t*, int),
                    int64_t (*seek)(void*, int64_t, int)) {
  uint8_t* buffer = static_cast<uint8_t*>(av_malloc(kIoBytes));
  AVIOContext* io = buffer ? avio_alloc_context(buffer, kIoBytes, writes ? 1 : 0, self, read, write, seek) : nullptr;
  if (io == nullptr) av_free(buffer);
  return io;  // nullptr when memory is short; not an exception, since C code is among the callers
}

void free_io(AVIOContext* io) {
  if (io == nullptr) return;
  av_freep(&io->buffer);
  avio_context_free(&io);
}

int refuse_open(AVFormatContext*, AVIOContext**, const char*, int, AVDictionary**) { return AVERROR(EPERM); }

int64_t resolve(int64_t offset, int whence, int64_t position, int64_t size) {
  switch (whence & ~AVSEEK_FORCE) {
    case AVSEEK_SIZE: return size;
    case SEEK_SET: break;
    case SEEK_CUR: offset += position; break;
    case SEEK_END: offset += size; break;
    default: return AVERROR(EINVAL);
  }
  return offset < 0 ? AVERROR(EINVAL) : offset;
}

}  // namespace

void log_callback(void*, int level, const char* format, va_list args) {
  LogCapture* capture = current_capture;
  if (capture == nullptr || level > AV_LOG_ERROR || !capture->first_.empty()) return;
  char line[256];
  std::vsnprintf(line, sizeof(line), format, args);
  for (const char* c = line; *c != '\0'; ++c) {
    // One line of printable ASCII: tags of a hostile file may reach this.
    if (*c == '\n') break;
    capture->first_ += *c >= 32 && *c < 127 ? *c : '?';
  }
  while (!capture->first_.empty() && (capture->first_.back() == ' ' || capture->first_.back() == '.')) {
    capture->first_.pop_back();
  }
}

LogCapture::LogCapture() : outer_(std::exchange(current_capture, this)) {
  static std::once_flag installed;
  std::call_once(installed, [] { av_log_set_callback(log_callback); });
}

LogCapture::~LogCapture() { current_capture = outer_; }

std::string LogCapture::reason(int code) const { return first_.empty() ? av_error(code) : first_; }

std::string av_error(int code) {
  char text[AV_ERROR_MAX_STRING_SIZE] = {};
  av_strerror(code, text, sizeof(text));
  return text;
}

AvPacket new_packet() {
  AvPacket packet(av_packet_alloc());
  if (!packet) fail(Code::memory, "cannot allocate a packet for FFmpeg");
  return packet;
}

AvFrame new_frame() {
  AvFrame frame(av_frame_alloc());
  if (!frame) fail(Code::memory, "cannot allocate a frame for FFmpeg");
  return frame;
}

AvCodec new_codec(const AVCodec* codec) {
  AvCodec context(avcodec_alloc_context3(codec));
  if (!context) fail(Code::memory, "cannot allocate a codec for FFmpeg");
  return context;
}

// ---- input ----------------------------------------------------------------------------------------------------------

MediaInput::MediaInput(const std::string& path) : path_(path) {
  fd_ = open_regular(path, &size_);
  const LogCapture log;
  // The destructor does not run when a constructor throws.
  const auto give_up = [&](int code) {
    avformat_close_input(&context_);
    free_io(io_);
    ::close(fd_);
    fail(Code::data, "%s is not a clip or sound that can be read: %s", path.c_str(), log.reason(code).c_str());
  };
  context_ = avformat_alloc_context();
  if (context_ == nullptr) give_up(AVERROR(ENOMEM));
  io_ = new_io(this, false, &MediaInput::read, nullptr, &MediaInput::seek);
  if (io_ == nullptr) give_up(AVERROR(ENOMEM));
  context_->pb = io_;
  context_->flags |= AVFMT_FLAG_CUSTOM_IO;
  context_->io_open = refuse_open;
  context_->format_whitelist = av_strdup(kContainers);
  int result = avformat_open_input(&context_, nullptr, nullptr, nullptr);  // frees the context on failure
  if (result < 0) give_up(result);
  result = avformat_find_stream_info(context_, nullptr);
  if (result < 0) give_up(result);
}

MediaInput::~MediaInput() {
  avformat_close_input(&context_);
  free_io(io_);
  ::close(fd_);
}

int MediaInput::read(void* self, uint8_t* data, int size) {
  MediaInput* file = static_cast<MediaInput*>(self);
  ssize_t count;
  do {
    count = ::pread(file->fd_, data, static_cast<size_t>(size), file->position_);
  } while (count < 0 && errno == EINTR);
  if (count < 0) return AVERROR(errno);
  if (count == 0) return AVERROR_EOF;
  file->position_ += count;
  return static_cast<int>(count);
}

int64_t MediaInput::seek(void* self, int64_t offset, int whence) {
  MediaInput* file = static_cast<MediaInput*>(self);
  const int64_t result = resolve(offset, whence, file->position_, file->size_);
  if (result >= 0 && (whence & ~AVSEEK_FORCE) != AVSEEK_SIZE) file->position_ = result;
  return result;
}

// ---- output ---------------------------------------------------------------------------------------------------------

OutputFile::OutputFile(const std::string& path, const char* muxer) : file_(path) {
  const int result = avformat_alloc_output_context2(&context_, nullptr, muxer, nullptr);
  if (result < 0) fail(Code::io, "cannot write %s: this FFmpeg has no %s writer", path.c_str(), muxer);
  io_ = new_io(&file_, true, nullptr, &OutputFile::write, &OutputFile::seek);
  if (io_ == nullptr) {
    avformat_free_context(context_);
    fail(Code::memory, "cannot write %s: out of memory", path.c_str());
  }
  context_->pb = io_;
  context_->opaque = &file_;
  context_->flags |= AVFMT_FLAG_CUSTOM_IO | AVFMT_FLAG_BITEXACT;
  context_->io_open = open_again;
  context_->io_close2 = close_again;
}

OutputFile::~OutputFile() {
  avformat_free_context(context_);
  free_io(io_);
}

int OutputFile::write(void* self, uint8_t* data, int size) {
  StagedFile* file = static_cast<StagedFile*>(self);
  return file->put(data, static_cast<size_t>(size)) ? size : AVERROR(file->error());
}

int64_t OutputFile::seek(void* self, int64_t offset, int whence) {
  StagedFile* file = static_cast<StagedFile*>(self);
  const int64_t result = resolve(offset, whence, file->position(), file->size());
  if (result >= 0 && (whence & ~AVSEEK_FORCE) != AVSEEK_SIZE) file->seek(result);
  return result;
}

namespace {

// The mp4 writer reads its own output again to move the index to the front.
struct ReadAgain {
  StagedFile* file;
  int64_t position;

  static int read(void* self, uint8_t* data, int size) {
    ReadAgain* again = static_cast<ReadAgain*>(self);
    const int64_t count = again->file->get(data, static_cast<size_t>(size), again->position);
    if (count < 0) return AVERROR(EIO);
    if (count == 0) return AVERROR_EOF;
    again->position += count;
    return static_cast<int>(count);
  }
  static int64_t seek(void* self, int64_t offset, int whence) {
    ReadAgain* again = static_cast<ReadAgain*>(self);
    const int64_t result = resolve(offset, whence, again->position, again->file->size());
    if (result >= 0 && (whence & ~AVSEEK_FORCE) != AVSEEK_SIZE) again->position = result;
    return result;
  }
};

}  // namespace

int OutputFile::open_again(AVFormatContext* context, AVIOContext** io, const char*, int flags, AVDictionary**) {
  if ((flags & AVIO_FLAG_WRITE) != 0) return AVERROR(EPERM);
  ReadAgain* again = new (std::nothrow) ReadAgain{static_cast<StagedFile*>(context->opaque), 0};
  *io = again != nullptr ? new_io(again, false, &ReadAgain::read, nullptr, &ReadAgain::seek) : nullptr;
  if (*io != nullptr) return 0;
  delete again;
  return AVERROR(ENOMEM);
}

int OutputFile::close_again(AVFormatContext*, AVIOContext* io) {
  if (io == nullptr) return 0;
  delete static_cast<ReadAgain*>(io->opaque);
  free_io(io);
  return 0;
}

void OutputFile::check(int result, const char* what, const LogCapture& log) {
  file_.check();
  if (result < 0) {
    fail(Code::io, "cannot write %s: %s failed: %s", file_.path().c_str(), what, log.reason(result).c_str());
  }
}

void OutputFile::flush() {
  avio_flush(io_);
  file_.check();
  if (io_->error < 0) fail(Code::io, "cannot write %s: %s", file_.path().c_str(), av_error(io_->error).c_str());
}

}  // namespace h3

#endif
