// Which writer and reader serve a path, and the writer that feeds several outputs at once.
#include <filesystem>

#include "base/error.h"
#include "media/codecs.h"
#include "media/files.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

struct KindRow {
  const char* extension;
  ClipKind kind;
  bool needs_ffmpeg;
};
constexpr KindRow kKinds[] = {
    {".mp4", ClipKind::mp4, true},  {".webm", ClipKind::webm, true}, {".avi", ClipKind::avi, true},
    {".y4m", ClipKind::y4m, false}, {".wav", ClipKind::wav, false},
};

#if H3_HAVE_FFMPEG
constexpr bool kHaveFfmpeg = true;
#else
constexpr bool kHaveFfmpeg = false;
#endif

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return (!path.empty() && path.back() == '/') || fs::is_directory(path, ignored);
}

ClipKind kind_of(const std::string& path) {
  if (path.empty()) fail(Code::usage, "the output path is empty; give a file such as clip.mp4");
  if (path.back() == '/') return ClipKind::folder;
  const std::string extension = extension_of(path);
  for (const KindRow& row : kKinds) {
    if (extension != row.extension) continue;
    if (row.needs_ffmpeg && !kHaveFfmpeg) {
      fail(Code::usage, "cannot write %s: this build has no FFmpeg and writes %s; build with H3_FFMPEG=ON for %s",
           path.c_str(), clip_extensions().c_str(), row.extension);
    }
    return row.kind;
  }
  fail(Code::usage, "cannot write %s: the extension \"%s\" is unknown; %s are allowed", path.c_str(), extension.c_str(),
       clip_extensions().c_str());
}

std::unique_ptr<ClipSink> open_sink(ClipKind kind, const std::string& path, const ClipOptions& options) {
  switch (kind) {
    case ClipKind::y4m: return open_y4m_sink(path, options);
    case ClipKind::wav: return open_wav_sink(path, options);
    case ClipKind::folder: return open_folder_sink(path, options);
    default: return open_container_sink(kind, path, options);
  }
}

class Writer final : public ClipWriter {
 public:
  Writer(const std::string& path, const ClipOptions& options) : options_(options) {
    const ClipKind kind = kind_of(path);
    check_clip_path(path);
    if (options.width < 1 || options.height < 1 || options.width % 2 != 0 || options.height % 2 != 0) {
      fail(Code::usage, "cannot write %s: %dx%d is not an even size", path.c_str(), options.width, options.height);
    }
    if (kind == ClipKind::wav && !options.audio) {
      fail(Code::usage, "cannot write %s without sound; drop --no-audio or choose %s", path.c_str(),
           clip_extensions().c_str());
    }
    sinks_.push_back(open_sink(kind, path, options));
    std::string wav = options.wav_path;
    if (wav.empty() && (kind == ClipKind::avi || kind == ClipKind::y4m)) wav = with_extension(path, ".wav");
    if (options.audio && !wav.empty() && kind != ClipKind::wav) sinks_.push_back(open_wav_sink(wav, options));
    if (options.frames_dir.empty()) return;
    ClipOptions silent = options;
    silent.audio = false;
    frames_sink_ = static_cast<int>(sinks_.size());
    sinks_.push_back(open_folder_sink(options.frames_dir, silent));
  }

  void set_audio(const float* samples, int64_t count) override {
    H3_ASSERT(options_.audio && !has_audio_ && !has_frames_ && count >= 0);
    has_audio_ = true;
    for (size_t i = 0; i < sinks_.size(); ++i) {
      if (static_cast<int>(i) != frames_sink_) sinks_[i]->set_audio(samples, count);
    }
  }
  void add_frames(const float* planar_rgb, int frames) override {
    H3_ASSERT(has_audio_ || !options_.audio);
    has_frames_ = true;
    for (int i = 0; i < frames; ++i) {
      const FrameView frame = frame_view(planar_rgb, frames, i, options_.width, options_.height);
      for (const std::unique_ptr<ClipSink>& sink : sinks_) sink->add_frame(frame);
    }
  }
  std::vector<std::string> finish() override {
    H3_ASSERT(has_audio_ || !options_.audio);
    for (const std::unique_ptr<ClipSink>& sink : sinks_) sink->close();
    // Only when every output is complete does the first one get its name.
    std::vector<std::string> written;
    for (const std::unique_ptr<ClipSink>& sink : sinks_) {
      for (std::string& path : sink->commit()) written.push_back(std::move(path));
    }
    sinks_.clear();
    return written;
  }

 private:
  ClipOptions options_;
  std::vector<std::unique_ptr<ClipSink>> sinks_;
  int frames_sink_ = -1;
  bool has_audio_ = false, has_frames_ = false;
};

}  // namespace

std::string clip_extensions() {
  std::string text;
  for (const KindRow& row : kKinds) {
    if (!row.needs_ffmpeg || kHaveFfmpeg) text += std::string(row.extension) + ", ";
  }
  return text + "or folder/";
}

void check_clip_path(const std::string& path) {
  if (kind_of(path) == ClipKind::folder) {
    StagedFolder::check(path);
  } else {
    check_writable(path);
  }
}

std::unique_ptr<ClipWriter> open_clip(const std::string& path, const ClipOptions& options) {
  return std::make_unique<Writer>(path, options);
}

std::unique_ptr<ClipReader> open_clip_reader(const std::string& path) {
  if (is_folder(path)) return open_folder_reader(path);
  if (extension_of(path) == ".y4m") {
    if (std::unique_ptr<ClipReader> reader = open_y4m_reader(path)) return reader;
  }
  return open_container_reader(path);
}

Sound read_sound(const std::string& path, double max_seconds) {
  std::error_code ignored;
  std::string file = path;
  // Formats without sound of their own have it beside them.
  if (is_folder(path)) file = path + "/sound.wav";
  if (extension_of(path) == ".y4m") file = with_extension(path, ".wav");
  if (file != path && !fs::exists(file, ignored)) return {};
  return kHaveFfmpeg ? read_container_sound(file, max_seconds) : read_wav(file, max_seconds);
}

std::string read_clip_metadata(const std::string& path) {
  std::error_code ignored;
  std::string file;
  if (is_folder(path)) file = path + "/metadata.json";
  if (extension_of(path) == ".y4m") file = path + ".json";
  if (file.empty()) return read_container_comment(path);
  if (!fs::exists(file, ignored)) return {};
  const std::vector<uint8_t> bytes = read_bytes(file, int64_t{1} << 24, 0);
  const std::string text(bytes.begin(), bytes.end());
  return text == "{}" ? std::string() : text;
}

namespace {

void take_sound(const std::string& path, const ClipLimits& limits, ClipData& clip) {
  Sound sound = read_sound(path, limits.max_seconds);
  clip.sample_rate = sound.sample_rate;
  clip.channels = sound.channels;
  clip.samples = std::move(sound.samples);
  for (std::string& warning : sound.warnings) clip.warnings.push_back(std::move(warning));
}

}  // namespace

ClipData read_clip(const std::string& path, const ClipLimits& limits) {
  ClipData clip;
  if (!kHaveFfmpeg && extension_of(path) == ".wav") {
    take_sound(path, limits, clip);
    return clip;
  }
  const std::unique_ptr<ClipReader> reader = open_clip_reader(path);
  const ClipInfo& info = reader->info();
  clip.width = info.width;
  clip.height = info.height;
  clip.fps = info.fps;
  const int64_t frame_bytes = static_cast<int64_t>(info.width) * info.height * 3;
  Image frame;
  double time = 0;
  while (info.width > 0 && reader->next(frame, time)) {
    if (limits.max_seconds > 0 && time >= limits.max_seconds) break;
    if ((static_cast<int64_t>(clip.frames.size()) + 1) * frame_bytes > limits.max_bytes) {
      fail(Code::memory, "%s needs more than %lld MB for its frames of %dx%d; cut or scale it first", path.c_str(),
           static_cast<long long>(limits.max_bytes >> 20), info.width, info.height);
    }
    clip.frames.push_back(std::move(frame.rgb));
    clip.times.push_back(time);
    frame.rgb.clear();
  }
  clip.warnings = reader->warnings();
  take_sound(path, limits, clip);
  return clip;
}

#if !H3_HAVE_FFMPEG
std::unique_ptr<ClipSink> open_container_sink(ClipKind, const std::string& path, const ClipOptions&) {
  kind_of(path);
  return nullptr;
}

std::unique_ptr<ClipReader> open_container_reader(const std::string& path) {
  fail(Code::data, "cannot read %s: this build has no FFmpeg and reads Y4M, WAV and folders of PPM frames",
       path.c_str());
}

Sound read_container_sound(const std::string& path, double max_seconds) { return read_wav(path, max_seconds); }

std::string read_container_comment(const std::string& path) {
  fail(Code::data, "cannot read %s: this build has no FFmpeg", path.c_str());
}
#endif

}  // namespace h3
