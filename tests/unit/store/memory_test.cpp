// A packed file is mapped: opening it expands nothing, and copies only rows that must be put in another order.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "backends/list.h"
#include "store/cmf.h"
#include "store/cmf_source.h"
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
constexpr Blocks kQ4K = {12, 256, 144}, kQ6K = {14, 256, 210}, kQ80 = {8, 32, 34};

// A file of zeros that takes no space.
class PackedFile {
 public:
  PackedFile(const Blocks& blocks, const TempFolder& folder) : path_(folder / "packed.gguf") {
    GgufFile file;
    for (int64_t i = 0; i < kMatrices; ++i) {
      file.entry("blocks." + std::to_string(i) + ".attn.qkv_proj.weight", blocks.type, {kRows, kCols},
                 static_cast<uint64_t>(i * blocks.matrix()));
    }
    std::ofstream(path(), std::ios::binary) << file.bytes();
    fs::resize_file(path(), fs::file_size(path()) + static_cast<uint64_t>(blocks.bytes()));
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Memory, APackedFileStaysPacked) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer keeps several bytes for each of the program's";
#endif
  if (anonymous_bytes() < 0) GTEST_SKIP() << "the system does not say what memory is anonymous";
  const TempFolder folder;
  const PackedFile file(kQ4K, folder);
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

// A model file of one kind, its matrices in a format, and the sources that hold them.
struct Held {
  std::vector<std::shared_ptr<TensorSource>> sources;
  std::vector<const TensorInfo*> matrices;
  int64_t bytes = 0;

  void take(std::shared_ptr<TensorSource> source) {
    for (const TensorInfo& info : source->tensors()) {
      matrices.push_back(&info);
      bytes += stored_matrix(info).bytes();
    }
    sources.push_back(std::move(source));
  }
};

Held gguf_of(const Blocks& blocks, const TempFolder& folder) {
  const PackedFile file(blocks, folder);
  Held held;
  held.take(open_checkpoint(file.path()));
  return held;
}

// Zeros, written by the packer's own writer.
Held cmf_of(Format format, const TempFolder& folder) {
  const std::string path = folder / (std::string(row_of(format).name) + ".cmf");
  const auto bytes = static_cast<uint64_t>(row_of(format).data_bytes(kRows, kCols));
  std::vector<CmfEntry> entries;
  for (int64_t i = 0; i < kMatrices; ++i) {
    entries.push_back(
        {"dit.blocks." + std::to_string(i) + ".attn.qkv_proj.weight", *cmf_dtype_of(format), {kRows, kCols}, bytes});
  }
  const std::string header = R"({"version":2,"arch":{},"quant_type":"F32"})";
  CmfWriter writer(path, entries, {}, {.header_bytes = header.size()});
  for (int64_t i = 0; i < kMatrices; ++i) writer.write(std::vector<std::byte>(bytes));
  writer.commit(header);
  Held held;
  for (const CmfPart& part : cmf_parts(std::make_shared<const CmfFile>(path))) held.take(part.source);
  return held;
}

// As ComfyUI writes it; the numbers are a hole in the file.
Held convrot_of(const TempFolder& folder) {
  const std::string path = folder / "convrot.safetensors";
  Json header = Json::object(), layers = Json::object();
  uint64_t end = 0;
  const auto entry = [&](const std::string& name, const char* type, int64_t cols, uint64_t bytes) {
    header.set(name, Json::object({{"dtype", type},
                                   {"shape", Json::array({Json(kRows), Json(cols)})},
                                   {"data_offsets", Json::array({Json(end), Json(end + bytes)})}}));
    end += bytes;
  };
  for (int64_t i = 0; i < kMatrices; ++i) {
    const std::string layer = "blocks." + std::to_string(i) + ".attn.qkv_proj";
    entry(layer + ".weight", "I8", kCols, static_cast<uint64_t>(kRows * kCols));
    entry(layer + ".weight_scale", "F32", 1, static_cast<uint64_t>(kRows * 4));
    layers.set(layer, Json::object({{"format", "int8_tensorwise"}, {"convrot", true}, {"convrot_groupsize", 256}}));
  }
  header.set("__metadata__",
             Json::object({{"_quantization_metadata", Json::object({{"layers", std::move(layers)}}).dump()}}));
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::ofstream(path, std::ios::binary) << GgufFile::number(text.size(), 8) << text;
  fs::resize_file(path, fs::file_size(path) + end);
  Held held;
  held.take(open_checkpoint(path));
  return held;
}

struct PackedKind {
  const char* name;
  bool eight_bits;
  Held (*open)(const TempFolder& folder);
};

constexpr PackedKind kKinds[] = {{"q4tp", false, [](const TempFolder& folder) { return cmf_of(Format::q4tp, folder); }},
                                 {"q2tp", false, [](const TempFolder& folder) { return cmf_of(Format::q2tp, folder); }},
                                 {"q8", true, [](const TempFolder& folder) { return cmf_of(Format::q8_row, folder); }},
                                 {"int8_convrot", true, convrot_of},
                                 {"Q4_K", false, [](const TempFolder& folder) { return gguf_of(kQ4K, folder); }},
                                 {"Q6_K", false, [](const TempFolder& folder) { return gguf_of(kQ6K, folder); }},
                                 {"Q8_0", true, [](const TempFolder& folder) { return gguf_of(kQ80, folder); }}};

// The same with the weights in the host's matmuls, of which one runs, so that its scratch counts too.
TEST(Memory, MatmulsOfTheHostReadPackedBits) {
  if (anonymous_bytes() < 0) GTEST_SKIP() << "the system does not say what memory is anonymous";
  ThreadPool pool(2);
  Log log;
  Context context{pool, log};
  const std::unique_ptr<Ops> ops = make_backend("cpu", context);
  for (const PackedKind& kind : kKinds) {
    const TempFolder folder;
    const Held held = kind.open(folder);
    ASSERT_EQ(held.matrices.size(), static_cast<size_t>(kMatrices)) << kind.name;
    for (const Compute compute : {Compute::int8, Compute::bf16, Compute::f32}) {
      const int64_t before = anonymous_bytes();
      std::vector<std::unique_ptr<Linear>> linears;
      for (const TensorInfo* info : held.matrices) {
        LinearSpec spec;
        spec.label = info->name;
        spec.compute = compute;
        spec.max_rows = 16;
        spec.weight.append(stored_matrix(*info), 0, kRows);
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
      const bool replaced = kind.eight_bits && compute == Compute::int8;
      EXPECT_LT(anonymous_bytes() - before, held.bytes * (replaced ? 11 : 1) / 10 + kWorkspace)
          << kind.name << " in " << name_of(compute);
      const bool packed =
          linears[0]->kernel.find(std::string(" on ") + row_of(held.matrices[0]->format).name) != std::string::npos;
      EXPECT_EQ(packed, !replaced || linears[0]->rotation > 0) << linears[0]->kernel;
    }
  }
}

}  // namespace
}  // namespace h3
