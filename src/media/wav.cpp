// WAV, 16-bit PCM out (formats.md H.2); integer and float PCM in for builds without FFmpeg.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "media/codecs.h"
#include "media/files.h"

namespace h3 {
namespace {

constexpr int64_t kMaxWavBytes = int64_t{1} << 31;

void put_le(std::vector<uint8_t>& out, uint32_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<uint8_t>(value >> (8 * i)));
}

void put_tag(std::vector<uint8_t>& out, const char* tag) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<uint8_t>(tag[i]));
}

class WavSink final : public ClipSink {
 public:
  WavSink(const std::string& path, const ClipOptions& options) : file_(path), rate_(options.sample_rate) {}
  void set_audio(const float* samples, int64_t count) override {
    const std::vector<uint8_t> bytes = encode_wav(samples, 2, count, rate_);
    file_.write(bytes.data(), bytes.size());
  }
  void add_frame(const FrameView&) override {}
  void close() override { file_.check(); }
  std::vector<std::string> commit() override {
    file_.commit();
    return {file_.path()};
  }

 private:
  StagedFile file_;
  int rate_;
};

uint32_t le(const uint8_t* at, int bytes) {
  uint32_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= static_cast<uint32_t>(at[i]) << (8 * i);
  return value;
}

// Integers are left-aligned to 32 bits and divided by 2^31; 8-bit samples are unsigned.
float sample_at(const uint8_t* at, int bits, bool is_float) {
  if (is_float) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  if (bits == 8) return (static_cast<int>(*at) - 128) / 128.0f;
  const uint32_t aligned = le(at, bits / 8) << (32 - bits);
  return static_cast<float>(static_cast<double>(static_cast<int32_t>(aligned)) / 2147483648.0);
}

}  // namespace

int16_t to_pcm16(float sample) {
  if (std::isnan(sample)) return 0;
  return static_cast<int16_t>(std::lround(std::clamp(sample, -1.0f, 1.0f) * 32767.0f));
}

std::vector<uint8_t> encode_wav(const float* samples, int channels, int64_t count, int rate) {
  const int64_t bytes = count * channels * 2;
  if (bytes > INT64_C(0xfffffff0))
    fail(Code::usage, "%lld samples do not fit a WAV file", static_cast<long long>(count));
  std::vector<uint8_t> out;
  out.reserve(static_cast<size_t>(bytes) + 44);
  put_tag(out, "RIFF");
  put_le(out, static_cast<uint32_t>(36 + bytes), 4);
  put_tag(out, "WAVE");
  put_tag(out, "fmt ");
  put_le(out, 16, 4);
  put_le(out, 1, 2);  // PCM
  put_le(out, static_cast<uint32_t>(channels), 2);
  put_le(out, static_cast<uint32_t>(rate), 4);
  put_le(out, static_cast<uint32_t>(rate * channels * 2), 4);
  put_le(out, static_cast<uint32_t>(channels * 2), 2);
  put_le(out, 16, 2);
  put_tag(out, "data");
  put_le(out, static_cast<uint32_t>(bytes), 4);
  for (int64_t i = 0; i < count; ++i) {
    for (int c = 0; c < channels; ++c) put_le(out, static_cast<uint16_t>(to_pcm16(samples[c * count + i])), 2);
  }
  return out;
}

void write_wav(const std::string& path, const float* samples, int channels, int64_t count, int rate) {
  const std::vector<uint8_t> bytes = encode_wav(samples, channels, count, rate);
  StagedFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

std::unique_ptr<ClipSink> open_wav_sink(const std::string& path, const ClipOptions& options) {
  return std::make_unique<WavSink>(path, options);
}

Sound read_wav(const std::string& path, double max_seconds) {
  const std::vector<uint8_t> b = read_bytes(path, kMaxWavBytes, 0);
  if (b.size() < 12 || std::memcmp(b.data(), "RIFF", 4) != 0 || std::memcmp(b.data() + 8, "WAVE", 4) != 0) {
    fail(Code::data, "%s is not a WAV file; this build has no FFmpeg and reads WAV sound only", path.c_str());
  }
  Sound sound;
  int bits = 0, kind = 0;
  for (size_t at = 12; b.size() - at >= 8;) {
    const size_t length = le(b.data() + at + 4, 4), left = b.size() - at - 8;
    const uint8_t* data = b.data() + at + 8;
    const bool is_data = std::memcmp(b.data() + at, "data", 4) == 0;
    if (length > left) fail(Code::data, "%s is truncated: a chunk is longer than the rest of the file", path.c_str());
    if (std::memcmp(b.data() + at, "fmt ", 4) == 0 && length >= 16) {
      kind = static_cast<int>(le(data, 2));
      if (kind == 0xfffe && length >= 26) kind = static_cast<int>(le(data + 24, 2));  // extensible: the sub-format
      sound.channels = static_cast<int>(le(data + 2, 2));
      sound.sample_rate = static_cast<int>(std::min<uint32_t>(le(data + 4, 4), 1u << 30));
      bits = static_cast<int>(le(data + 14, 2));
    }
    if (is_data) {
      const bool is_float = kind == 3 && bits == 32;
      const bool is_pcm = kind == 1 && (bits == 8 || bits == 16 || bits == 24 || bits == 32);
      if ((!is_float && !is_pcm) || sound.channels < 1 || sound.channels > 64 || sound.sample_rate < 1) {
        fail(Code::data,
             "%s has WAV format %d with %d bits and %d channels; PCM of 8 to 32 bits or 32-bit float is read",
             path.c_str(), kind, bits, sound.channels);
      }
      const size_t step = static_cast<size_t>(bits / 8) * sound.channels;
      sound.count = static_cast<int64_t>(length / step);
      if (max_seconds > 0) sound.count = std::min(sound.count, static_cast<int64_t>(max_seconds * sound.sample_rate));
      sound.samples.resize(static_cast<size_t>(sound.count * sound.channels));
      for (int64_t i = 0; i < sound.count; ++i) {
        for (int c = 0; c < sound.channels; ++c) {
          sound.samples[static_cast<size_t>(c * sound.count + i)] =
              sample_at(data + i * step + static_cast<size_t>(c) * (bits / 8), bits, is_float);
        }
      }
      return sound;
    }
    at += 8 + std::min(left, length + (length & 1));
  }
  fail(Code::data, "%s is damaged: the WAV has no sound data", path.c_str());
}

}  // namespace h3
