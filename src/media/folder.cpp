// Clips as folders: frame_0000.png ..., sound.wav and metadata.json.
#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "media/codecs.h"
#include "media/files.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

// Without FFmpeg frames are written in the one form that can be read back.
#if H3_HAVE_FFMPEG
constexpr const char* kFrameExtension = "png";
std::vector<uint8_t> encode_frame(const Image& image) { return encode_png(image); }
#else
constexpr const char* kFrameExtension = "ppm";
std::vector<uint8_t> encode_frame(const Image& image) { return encode_ppm(image); }
#endif

constexpr double kFolderFps = 24;  // the model's; a folder does not record one

class FolderSink final : public ClipSink {
 public:
  FolderSink(const std::string& path, const ClipOptions& options) : folder_(path), options_(options) {}

  void set_audio(const float* samples, int64_t count) override {
    const std::vector<uint8_t> wav = encode_wav(samples, 2, count, options_.sample_rate);
    folder_.write("sound.wav", wav.data(), wav.size());
  }
  void add_frame(const FrameView& frame) override {
    Image image{.width = frame.width, .height = frame.height, .rgb = {}, .warnings = {}};
    image.rgb.resize(static_cast<size_t>(image.width) * image.height * 3);
    to_rgb8(frame, image.rgb.data());
    const std::vector<uint8_t> bytes = encode_frame(image);
    const std::string name = strf("frame_%04lld.%s", static_cast<long long>(frames_++), kFrameExtension);
    folder_.write(name, bytes.data(), bytes.size());
  }
  void close() override {
    const std::string text = options_.metadata.empty() ? "{}" : options_.metadata;
    folder_.write("metadata.json", text.data(), text.size());
  }
  std::vector<std::string> commit() override { return folder_.commit(); }

 private:
  StagedFolder folder_;
  ClipOptions options_;
  int64_t frames_ = 0;
};

class FolderReader final : public ClipReader {
 public:
  explicit FolderReader(const std::string& path) {
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
      if (is_frame_name(entry.path().filename().string())) names_.push_back(entry.path().string());
    }
    if (names_.empty())
      fail(Code::data, "the folder %s holds no frame_0000.png or .ppm; it is not a clip", path.c_str());
    // Longer numbers follow shorter ones.
    std::sort(names_.begin(), names_.end(), [](const std::string& a, const std::string& b) {
      return a.size() != b.size() ? a.size() < b.size() : a < b;
    });
    const Image first = read_image(names_[0]);
    info_ = {.width = first.width, .height = first.height, .fps = kFolderFps, .seconds = names_.size() / kFolderFps};
  }

  const ClipInfo& info() const override { return info_; }
  bool next(Image& frame, double& time) override {
    if (next_ == names_.size()) return false;
    frame = read_image(names_[next_]);
    if (frame.width != info_.width || frame.height != info_.height) {
      fail(Code::data, "%s is %dx%d but the frames before it are %dx%d", names_[next_].c_str(), frame.width,
           frame.height, info_.width, info_.height);
    }
    time = static_cast<double>(next_++) / kFolderFps;
    return true;
  }
  const std::vector<std::string>& warnings() const override { return warnings_; }

 private:
  std::vector<std::string> names_, warnings_;
  ClipInfo info_;
  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<ClipSink> open_folder_sink(const std::string& path, const ClipOptions& options) {
  return std::make_unique<FolderSink>(path, options);
}

std::unique_ptr<ClipReader> open_folder_reader(const std::string& path) { return std::make_unique<FolderReader>(path); }

}  // namespace h3
