// Opening a packed file maps it: nothing is expanded or copied unless rows must be put in another order.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "store/open.h"
#include "tests/support/gguf_file.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;
using testing::GgufFile;

// Bytes of this process that no file backs.
int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) * 1024;
  }
  return -1;
}

TEST(Memory, APackedFileStaysPacked) {
  if (anonymous_bytes() < 0) GTEST_SKIP() << "the system does not say what memory is anonymous";
  constexpr int64_t kMatrices = 16, kRows = 3 * 512, kCols = 4096;
  constexpr int64_t kBytes = kRows * kCols / 256 * 144;  // Q4_K
  GgufFile file;
  for (int64_t i = 0; i < kMatrices; ++i) {
    file.entry("blocks." + std::to_string(i) + ".attn.qkv_proj.weight", 12, {kRows, kCols},
               static_cast<uint64_t>(i * kBytes));
  }
  const std::string path = (fs::temp_directory_path() / ("h3_memory_" + std::to_string(::getpid()))).string();
  std::ofstream(path, std::ios::binary) << file.bytes();
  fs::resize_file(path, fs::file_size(path) + kMatrices * kBytes);  // zeros that take no space

  const int64_t before = anonymous_bytes();
  std::vector<StoredMatrix> kept;
  const std::unique_ptr<TensorSource> source = open_checkpoint(path);
  uint64_t sum = 0;
  for (const TensorInfo& info : source->tensors()) {
    MatrixSource whole;
    const StoredMatrix stored = stored_matrix(info);
    whole.append(stored, 0, stored.rows);
    for (StoredMatrix& segment : whole.segments()) kept.push_back(std::move(segment));
    for (const std::byte b : stored.data) sum += static_cast<uint64_t>(b);  // every page is read
  }
  const int64_t opened = anonymous_bytes() - before;
  EXPECT_EQ(sum, 0u);
  EXPECT_LT(opened, kMatrices * kBytes / 10);

  // Rows taken per head are copied as they are, still packed.
  kept.clear();
  for (const TensorInfo& info : source->tensors()) {
    MatrixSource heads;
    const StoredMatrix stored = stored_matrix(info);
    for (int64_t part = 0; part < 3; ++part) {
      for (int64_t head = 0; head < 4; ++head) heads.append(stored, (head * 3 + part) * 128, 128);
    }
    for (StoredMatrix& segment : heads.segments()) kept.push_back(std::move(segment));
  }
  EXPECT_LT(anonymous_bytes() - before, kMatrices * kBytes * 11 / 10);
  fs::remove(path);
}

}  // namespace
}  // namespace h3
