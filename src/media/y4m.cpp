// Y4M: raw 8-bit 4:2:0 with a text header. Written as BT.709 limited range with left-sited chroma, like the mp4.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

#include "base/error.h"
#include "media/codecs.h"
#include "media/files.h"
#include "media/yuv.h"

namespace h3 {
namespace {

constexpr char kMagic[] = "YUV4MPEG2 ";
constexpr const char* kMatrixTag = "XMATRIX=BT709";  // ours: the format has no tag for it
constexpr int64_t kMaxPixels = int64_t{1} << 26;

class Y4mSink final : public ClipSink {
 public:
  Y4mSink(const std::string& path, const ClipOptions& options) : file_(path), metadata_(options.metadata) {
    const std::string header = strf("%sW%d H%d F%d:1 Ip A1:1 C420mpeg2 XCOLORRANGE=LIMITED %s\n", kMagic, options.width,
                                    options.height, options.fps, kMatrixTag);
    file_.write(header.data(), header.size());
    const size_t pixels = static_cast<size_t>(options.width) * options.height;
    frame_.resize(pixels + pixels / 2);
  }

  void set_audio(const float*, int64_t) override {}
  void add_frame(const FrameView& frame) override {
    uint8_t* luma = frame_.data();
    uint8_t* cb = luma + static_cast<size_t>(frame.width) * frame.height;
    uint8_t* cr = cb + static_cast<size_t>(frame.width / 2) * (frame.height / 2);
    const PlaneView planes[3] = {{luma, frame.width}, {cb, frame.width / 2}, {cr, frame.width / 2}};
    to_yuv420(frame, planes);
    file_.write("FRAME\n", 6);
    file_.write(frame_.data(), frame_.size());
  }
  void close() override {
    if (metadata_.empty()) return;
    beside_ = std::make_unique<StagedFile>(file_.path() + ".json");
    beside_->write(metadata_.data(), metadata_.size());
  }
  std::vector<std::string> commit() override {
    std::vector<std::string> written = {file_.path()};
    file_.commit();
    if (beside_) {
      beside_->commit();
      written.push_back(beside_->path());
    }
    return written;
  }

 private:
  StagedFile file_;
  std::string metadata_;
  std::unique_ptr<StagedFile> beside_;
  std::vector<uint8_t> frame_;
};

class Y4mReader final : public ClipReader {
 public:
  Y4mReader(const std::string& path, std::FILE* file) : path_(path), file_(file) {}
  ~Y4mReader() override { std::fclose(file_); }

  // False when the header is not of a kind read here.
  bool parse_header() {
    char line[512];
    if (std::fgets(line, sizeof(line), file_) == nullptr || std::strncmp(line, kMagic, sizeof(kMagic) - 1) != 0)
      return false;
    long rate = 0, base = 1, width = 0, height = 0;
    bool has_matrix = false;
    char* rest = nullptr;
    for (char* token = strtok_r(line, " \n", &rest); token != nullptr; token = strtok_r(nullptr, " \n", &rest)) {
      const std::string value = token + 1;
      if (token[0] == 'W') width = std::strtol(value.c_str(), nullptr, 10);
      if (token[0] == 'H') height = std::strtol(value.c_str(), nullptr, 10);
      if (token[0] == 'F' && std::sscanf(value.c_str(), "%9ld:%9ld", &rate, &base) != 2) return false;
      if (token[0] == 'C' && value != "420" && value != "420jpeg" && value != "420mpeg2" && value != "420paldv")
        return false;
      if (token[0] == 'C') colour_.centred_x = value == "420jpeg";
      if (std::strcmp(token, "XCOLORRANGE=FULL") == 0) colour_.full = true;
      if (std::strcmp(token, kMatrixTag) == 0) has_matrix = true;
    }
    if (width < 1 || height < 1 || width > 32768 || height > 32768 || width * height > kMaxPixels) {
      fail(Code::data, "%s is damaged: its header says %ldx%ld pixels", path_.c_str(), width, height);
    }
    if (rate < 1 || base < 1) fail(Code::data, "%s is damaged: its frame rate is %ld:%ld", path_.c_str(), rate, base);
    if (!has_matrix && height < 720) colour_.kr = 0.299, colour_.kb = 0.114;
    info_.width = static_cast<int>(width);
    info_.height = static_cast<int>(height);
    info_.fps = static_cast<double>(rate) / static_cast<double>(base);
    picture_ = {.width = info_.width, .height = info_.height, .shift_x = 1, .shift_y = 1};
    const size_t pixels = static_cast<size_t>(width) * static_cast<size_t>(height);
    const size_t chroma = static_cast<size_t>(picture_.chroma_width()) * picture_.chroma_height();
    raw_.resize(pixels + 2 * chroma);
    for (int p = 0; p < 3; ++p) {
      picture_.plane[p] = raw_.data() + (p == 0 ? 0 : pixels + (p - 1) * chroma);
      picture_.stride[p] = p == 0 ? info_.width : picture_.chroma_width();
    }
    return true;
  }

  const ClipInfo& info() const override { return info_; }
  const std::vector<std::string>& warnings() const override { return warnings_; }

  bool next(Image& frame, double& time) override {
    char line[512];
    if (std::fgets(line, sizeof(line), file_) == nullptr) return false;
    if (std::strncmp(line, "FRAME", 5) != 0) {
      fail(Code::data, "%s is damaged: frame %lld has no header", path_.c_str(), static_cast<long long>(frames_));
    }
    if (std::fread(raw_.data(), 1, raw_.size(), file_) != raw_.size()) {
      fail(Code::data, "%s is truncated: frame %lld is not complete", path_.c_str(), static_cast<long long>(frames_));
    }
    frame.width = info_.width;
    frame.height = info_.height;
    frame.warnings.clear();
    frame.rgb.resize(static_cast<size_t>(info_.width) * info_.height * 3);
    yuv_to_rgb(picture_, colour_, frame.rgb.data());
    time = static_cast<double>(frames_++) / info_.fps;
    return true;
  }

 private:
  std::string path_;
  std::FILE* file_;
  ClipInfo info_;
  YuvColour colour_;
  YuvPicture picture_;  // of raw_
  std::vector<std::string> warnings_;
  std::vector<uint8_t> raw_;
  int64_t frames_ = 0;
};

}  // namespace

std::unique_ptr<ClipSink> open_y4m_sink(const std::string& path, const ClipOptions& options) {
  return std::make_unique<Y4mSink>(path, options);
}

std::unique_ptr<ClipReader> open_y4m_reader(const std::string& path) {
  int64_t size = 0;
  const int fd = open_regular(path, &size);
  std::FILE* file = ::fdopen(fd, "rb");
  if (file == nullptr) {
    ::close(fd);
    fail(Code::io, "cannot read %s", path.c_str());
  }
  auto reader = std::make_unique<Y4mReader>(path, file);
  if (!reader->parse_header()) return nullptr;
  return reader;
}

}  // namespace h3
