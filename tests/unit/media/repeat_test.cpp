// The bytes of a clip follow from its frames alone, not from what memory held before.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/file_map.h"
#include "media/media.h"

namespace h3 {
namespace {

// New heap memory of the process holds a pattern while one of these lives (glibc).
class DirtyHeap {
 public:
  explicit DirtyHeap(int pattern) { ::mallopt(M_PERTURB, pattern); }
  ~DirtyHeap() { ::mallopt(M_PERTURB, 0); }
};

std::string encode(const std::string& path, int width, int height) {
  ClipOptions options;
  options.width = width;
  options.height = height;
  options.audio = false;
  const std::unique_ptr<ClipWriter> writer = open_clip(path, options);
  std::vector<float> frame(size_t{3} * static_cast<size_t>(width) * static_cast<size_t>(height));
  for (int t = 0; t < 20; ++t) {
    for (size_t i = 0; i < frame.size(); ++i) {
      const double x = static_cast<double>(i % static_cast<size_t>(width)),
                   y = static_cast<double>(i / static_cast<size_t>(width));
      frame[i] = static_cast<float>(0.5 + 0.4 * std::sin(0.3 * x + 0.2 * t) * std::cos(0.23 * y - 0.3 * t));
    }
    writer->add_frames(frame.data(), 1);
  }
  writer->finish();
  return read_file(path);
}

class Repeat : public testing::TestWithParam<const char*> {};

TEST_P(Repeat, BytesDoNotDependOnTheHeap) {
  const std::string ending = GetParam();
  if (clip_extensions().find(ending) == std::string::npos) GTEST_SKIP() << "this build does not write " << ending;
  const std::string path = testing::TempDir() + "h3_repeat_" + std::to_string(::getpid()) + ending;
  for (const auto& [width, height] : {std::pair{64, 64}, {96, 160}, {160, 96}}) {
    std::vector<std::string> files;
    for (const int pattern : {1, 0x5a, 0xfe}) {
      const DirtyHeap dirty(pattern);
      files.push_back(encode(path, width, height));
    }
    EXPECT_TRUE(files[0] == files[1]) << width << "x" << height;
    EXPECT_TRUE(files[0] == files[2]) << width << "x" << height;
  }
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(Containers, Repeat, testing::Values(".mp4", ".webm", ".avi", ".y4m"),
                         [](const auto& container) { return std::string(container.param).substr(1); });

}  // namespace
}  // namespace h3
