#include "tests/unit/media/fixtures.h"

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

namespace h3 {

namespace fs = std::filesystem;

TempFolder::TempFolder() {
  std::string pattern = (fs::temp_directory_path() / "h3-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) fail(Code::io, "cannot make %s", pattern.c_str());
  path_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::vector<std::string> TempFolder::list() const {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

void write_bytes(const std::string& path, const std::vector<uint8_t>& bytes) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file), bytes.size());
  std::fclose(file);
}

std::vector<uint8_t> file_bytes(const std::string& path) {
  std::vector<uint8_t> bytes;
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return bytes;
  uint8_t block[4096];
  for (size_t got; (got = std::fread(block, 1, sizeof(block), file)) > 0;)
    bytes.insert(bytes.end(), block, block + got);
  std::fclose(file);
  return bytes;
}

std::vector<float> moving_frames(int first, int count, int width, int height) {
  std::vector<float> out(static_cast<size_t>(3) * count * width * height);
  for (int c = 0; c < 3; ++c) {
    for (int t = 0; t < count; ++t) {
      for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x) {
          const double phase = 0.05 * (x + (c + 1) * y) + 0.2 * (first + t) + c;
          out[((static_cast<size_t>(c) * count + t) * height + y) * width + x] =
              static_cast<float>(0.5 + 0.45 * std::sin(phase));
        }
      }
    }
  }
  return out;
}

std::vector<float> tone(int64_t count, int rate) {
  std::vector<float> out(static_cast<size_t>(count) * 2);
  for (int c = 0; c < 2; ++c) {
    for (int64_t i = 0; i < count; ++i) {
      const double cycles = (c == 0 ? 440.0 : 660.0) * static_cast<double>(i) / rate;
      out[static_cast<size_t>(c * count + i)] = static_cast<float>(0.5 * std::sin(2 * 3.14159265358979 * cycles));
    }
  }
  return out;
}

double psnr(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  if (a.size() != b.size() || a.empty()) return 0;
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return 10 * std::log10(255.0 * 255.0 / std::max(sum / static_cast<double>(a.size()), 1e-9));
}

double tone_share(const float* samples, int64_t count, double frequency, int rate) {
  double cosine = 0, sine = 0, power = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double phase = 2 * 3.14159265358979 * frequency * static_cast<double>(i) / rate;
    cosine += samples[i] * std::cos(phase);
    sine += samples[i] * std::sin(phase);
    power += static_cast<double>(samples[i]) * samples[i];
  }
  return power > 0 ? 2 * (cosine * cosine + sine * sine) / (static_cast<double>(count) * power) : 0;
}

}  // namespace h3
