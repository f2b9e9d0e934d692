// A packed file is mapped: opening it expands nothing, and copies only rows that must be put in another order.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "backends/list.h"
#include "store/open.h"
#include "tests/support/gguf_file.h"
#include "tests/support/temp_folder.h"

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

// What a sanitizer keeps for itself beside so many bytes that the program reads: the address sanitizer one for eight.
constexpr int64_t shadow_of(int64_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  return bytes / 8;
#else
  return (void)bytes, 0;
#endif
}

constexpr int64_t kMatrices = 16, kRows = 3 * 512, kCols = 4096;

// A block format of GGUF.
struct Blocks {
  uint32_t type;
  int64_t cols, block;
  int64_t matrix() const { return kRows * kCols / cols * block; }
  int64_t bytes() const { return kMatrices * matrix(); }
};
constexpr Blocks kQ4K = {12, 256, 144}, kQ80 = {8, 32, 34};

// A file of zeros that takes no space, removed at the end.
class PackedFile {
 public:
  explicit PackedFile(const Blocks& blocks) {
    GgufFile file;
    for (int64_t i = 0; i < kMatrices; ++i) {
      file.entry("blocks." + std::to_string(i) + ".attn.qkv_proj.weight", blocks.type, {kRows, kCols},
                 static_cast<uint64_t>(i * blocks.matrix()));
    }
    std::ofstream(path(), std::ios::binary) << file.bytes();
    fs::resize_file(path(), fs::file_size(path()) + static_cast<uint64_t>(blocks.bytes()));
  }
  std::string path() const { return folder_ / "packed.gguf"; }

 private:
  TempFolder folder_;
};

TEST(Memory, APackedFileStaysPacked) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer keeps several bytes for each of the program's";
#endif
  if (anonymous_bytes() < 0) GTEST_SKIP() << "the system does not say what memory is anonymous";
  const PackedFile file(kQ4K);
  const int64_t before = anonymous_bytes();
  std::vector<GatheredMatrix> kept;
  const std::unique_ptr<TensorSource> source = open_checkpoint(file.path());
  uint64_t sum = 0;
  for (const TensorInfo& info : source->tensors()) {
    MatrixSource whole;
    const StoredMatrix stored = stored_matrix(info);
    whole.append(stored, 0, stored.rows);
    for (GatheredMatrix& segment : whole.segments()) kept.push_back(std::move(segment));
    for (const std::byte b : stored.data) sum += static_cast<uint64_t>(b);  // every page is read
  }
  const int64_t opened = anonymous_bytes() - before;
  EXPECT_EQ(sum, 0u);
  EXPECT_LT(opened, kQ4K.bytes() / 10 + shadow_of(kQ4K.bytes()));

  // Rows taken per head are named, not copied.
  kept.clear();
  for (const TensorInfo& info : source->tensors()) {
    MatrixSource heads;
    const StoredMatrix stored = stored_matrix(info);
    for (int64_t part = 0; part < 3; ++part) {
      for (int64_t head = 0; head < 4; ++head) heads.append(stored, (head * 3 + part) * 128, 128);
    }
    for (GatheredMatrix& segment : heads.segments()) kept.push_back(std::move(segment));
  }
  EXPECT_LT(anonymous_bytes() - before, kQ4K.bytes() / 10 + shadow_of(kQ4K.bytes()));
}

// The same with the weights in the host's matmuls, of which one runs, so that its scratch counts too.
TEST(Memory, MatmulsOfTheHostReadPackedBits) {
  if (anonymous_bytes() < 0) GTEST_SKIP() << "the system does not say what memory is anonymous";
  ThreadPool pool(2);
  Log log;
  Context context{pool, log};
  const std::unique_ptr<Ops> ops = make_backend("cpu", context);
  for (const Blocks& blocks : {kQ4K, kQ80}) {
    const PackedFile file(blocks);
    for (const Compute compute : {Compute::int8, Compute::bf16, Compute::f32}) {
      const int64_t before = anonymous_bytes();
      const std::unique_ptr<TensorSource> source = open_checkpoint(file.path());
      std::vector<std::unique_ptr<Linear>> linears;
      for (const TensorInfo& info : source->tensors()) {
        LinearSpec spec;
        spec.label = info.name;
        spec.compute = compute;
        spec.max_rows = 16;
        spec.weight.append(stored_matrix(info), 0, kRows);
        linears.push_back(ops->make_linear(std::move(spec)));
      }
      const DType type = compute == Compute::f32 ? DType::f32 : DType::bf16;
      const std::vector<float> ones(16 * kCols, 1.0f);
      const Tensor x = upload_f32(ops->device(), ones.data(), {16, kCols}, type, "x");
      const Tensor y(ops->device(), type, {16, kRows}, "y");
      ops->linear(*linears[0], x, y);
      ops->sync();
      constexpr int64_t kWorkspace = int64_t{16} << 20;
      // Panels of int8 replace the pages of eight-bit codes.
      const bool replaced = blocks.type == kQ80.type && compute == Compute::int8;
      EXPECT_LT(anonymous_bytes() - before, blocks.bytes() * (replaced ? 11 : 1) / 10 + kWorkspace)
          << blocks.type << " " << static_cast<int>(compute);
    }
  }
}

}  // namespace
}  // namespace h3
