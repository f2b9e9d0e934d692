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

// How Y'CbCr samples become R'G'B'.
struct Colour {
  bool full = false, bt709 = true, centred = false;
};

class Y4mReader final : public ClipReader {
 public:
  Y4mReader(const std::string& path, std::FILE* file) : path_(path), file_(file) {}
  ~Y4mReader() override { std::fclose(file_); }

  // False when the header is not of a kind read here.
  bool parse_header() {
    char line[512];
    if (std::fgets(line, sizeof(line), file_) == nullptr || std::strncmp(line, kMagic, sizeof(kMagic) - 1) != 0) return false;
    long rate = 0, base = 1, width = 0, height = 0;
    bool has_matrix = false;
    char* rest = nullptr;
    for (char* token = strtok_r(line, " \n", &rest); token != nullptr; token = strtok_r(nullptr, " \n", &rest)) {
      const std::string value = token + 1;
      if (token[0] == 'W') width = std::strtol(value.c_str(), nullptr, 10);
      if (token[0] == 'H') height = std::strtol(value.c_str(), nullptr, 10);
      if (token[0] == 'F' && std::sscanf(value.c_str(), "%9ld:%9ld", &rate, &base) != 2) return false;
      if (token[0] == 'C' && value != "420" && value != "420jpeg" && value != "420mpeg2" && value != "420paldv") return false;
      if (token[0] == 'C') colour_.centred = value == "420jpeg";
      if (std::strcmp(token, "XCOLORRANGE=FULL") == 0) colour_.full = true;
      if (std::strcmp(token, kMatrixTag) == 0) has_matrix = true;
    }
    if (width < 1 || height < 1 || width > 32768 || height > 32768 || width * height > kMaxPixels) {
      fail(Code::data, "%s is damaged: its header says %ldx%ld pixels", path_.c_str(), width, height);
    }
    if (rate < 1 || base < 1) fail(Code::data, "%s is damaged: its frame rate is %ld:%ld", path_.c_str(), rate, base);
    colour_.bt709 = has_matrix || height >= 720;
    info_.width = static_cast<int>(width);
    info_.height = static_cast<int>(height);
    info_.fps = static_cast<double>(rate) / static_cast<double>(base);
    chroma_width_ = (info_.width + 1) / 2;
    chroma_height_ = (info_.height + 1) / 2;
    raw_.resize(static_cast<size_t>(info_.width) * info_.height + 2 * static_cast<size_t>(chroma_width_) * chroma_height_);
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
    for (int y = 0; y < info_.height; ++y) convert_row(y, frame.rgb.data() + static_cast<size_t>(y) * info_.width * 3);
    time = static_cast<double>(frames_++) / info_.fps;
    return true;
  }

 private:
  // Linear interpolation between the two nearest chroma rows and columns.
  void convert_row(int y, uint8_t* rgb) const {
    const float kr = colour_.bt709 ? 0.2126f : 0.299f, kb = colour_.bt709 ? 0.0722f : 0.114f, kg = 1 - kr - kb;
    const float luma_scale = colour_.full ? 1 : 255.0f / 219, chroma_scale = colour_.full ? 1 : 255.0f / 224;
    const float black = colour_.full ? 0 : 16;
    const int y0 = y / 2, y1 = std::clamp(y % 2 != 0 ? y0 + 1 : y0 - 1, 0, chroma_height_ - 1);
    const uint8_t* luma = raw_.data() + static_cast<size_t>(y) * info_.width;
    const uint8_t* cb = raw_.data() + static_cast<size_t>(info_.width) * info_.height;
    const uint8_t* cr = cb + static_cast<size_t>(chroma_width_) * chroma_height_;
    for (int x = 0; x < info_.width; ++x) {
      const int x0 = x / 2, other = x % 2 != 0 ? x0 + 1 : x0 - 1;
      const int x1 = std::clamp(other, 0, chroma_width_ - 1);
      const float near = colour_.centred ? 0.75f : (x % 2 != 0 ? 0.5f : 1.0f);
      const auto chroma = [&](const uint8_t* plane) {
        const uint8_t* a = plane + static_cast<size_t>(y0) * chroma_width_;
        const uint8_t* b = plane + static_cast<size_t>(y1) * chroma_width_;
        const float row0 = a[x0] * near + a[x1] * (1 - near), row1 = b[x0] * near + b[x1] * (1 - near);
        return (row0 * 0.75f + row1 * 0.25f - 128) * chroma_scale;
      };
      const float l = (luma[x] - black) * luma_scale, u = chroma(cb), v = chroma(cr);
      const float r = l + 2 * (1 - kr) * v, b = l + 2 * (1 - kb) * u, g = (l - kr * r - kb * b) / kg;
      const float out[3] = {r, g, b};
      for (int c = 0; c < 3; ++c) rgb[3 * x + c] = static_cast<uint8_t>(std::lrint(std::clamp(out[c], 0.0f, 255.0f)));
    }
  }

  std::string path_;
  std::FILE* file_;
  ClipInfo info_;
  Colour colour_;
  std::vector<std::string> warnings_;
  std::vector<uint8_t> raw_;
  int chroma_width_ = 0, chroma_height_ = 0;
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
