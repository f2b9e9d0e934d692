#include <gtest/gtest.h>

#include <bit>

#include "apps/parity/codec_vectors.h"
#include "base/error.h"
#include "base/file_map.h"
#include "base/log.h"
#include "model/dit/weights.h"
#include "store/open.h"
#include "store/recognise.h"
#include "store/values.h"
#include "store/weights.h"
#include "tests/support/gguf_file.h"
#include "tests/unit/dit/toy_checkpoint.h"

namespace h3 {
namespace {

using testing::bytes_of;
using testing::GgufFile;

constexpr uint32_t kF32 = 0, kF16 = 1, kQ4K = 12;

std::vector<float> values_of(const TensorSource& source, const std::string& name) {
  const TensorInfo* info = source.find(name);
  if (info == nullptr) return {};
  return values_of(*info);
}

TEST(Gguf, ReadsShapesMetadataAndValues) {
  GgufFile file;
  file.text("general.architecture", "h3").u32("answer", 42).raw_value("ratio", 6, GgufFile::floats({0.5f}));
  file.raw_value("small", 1, "\xff").raw_value("flag", 7, "\1");
  file.raw_value("list", 9, GgufFile::strings({"a", "bc"}));
  file.tensor("m", kF32, {2, 3}, GgufFile::floats({1, 2, 3, 4, 5, 6}));
  file.tensor("v", kF32, {4}, GgufFile::floats({7, 8, 9, 10}));
  const std::string bytes = file.bytes();
  const auto source = open_checkpoint("x.bin", bytes_of(bytes));
  EXPECT_STREQ(source->container(), "GGUF");
  ASSERT_EQ(source->tensors().size(), 2u);
  EXPECT_EQ(source->find("m")->dims, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(source->find("m")->offset % 32, 0u);
  EXPECT_EQ(values_of(*source, "m"), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(values_of(*source, "v"), (std::vector<float>{7, 8, 9, 10}));
  const std::map<std::string, std::string> expected = {{"general.architecture", "h3"},
                                                       {"answer", "42"},
                                                       {"flag", "true"},
                                                       {"ratio", "0.5"},
                                                       {"small", "-1"},
                                                       {"list", "2 values"}};
  EXPECT_EQ(source->metadata(), expected);
  EXPECT_EQ(source->tokenizer(), nullptr);
  EXPECT_EQ(source->id(), open_gguf("y", bytes_of(bytes))->id());
}

TEST(Gguf, VersionTwoWithoutMetadataAndAnotherAlignment) {
  const std::string plain = GgufFile(2).tensor("m", kF32, {1, 1}, GgufFile::floats({3})).bytes();
  EXPECT_EQ(values_of(*open_gguf("x", bytes_of(plain)), "m"), std::vector<float>{3});
  GgufFile wide;
  wide.alignment = 256;
  wide.u32("general.alignment", 256);
  wide.tensor("a", kF32, {1}, GgufFile::floats({1})).tensor("b", kF32, {1}, GgufFile::floats({2}));
  const std::string bytes = wide.bytes();
  const auto source = open_gguf("x", bytes_of(bytes));
  EXPECT_EQ(source->find("b")->offset % 256, 0u);
  EXPECT_EQ(values_of(*source, "b"), std::vector<float>{2});
}

// The blocks of the vector file as a matrix of two rows, read through the container.
TEST(Gguf, EveryBlockTypeGivesItsValues) {
  const std::pair<const char*, uint32_t> types[] = {{"Q4_0", 2},  {"Q4_1", 3},  {"Q5_0", 6},  {"Q5_1", 7},
                                                    {"Q8_0", 8},  {"Q2_K", 10}, {"Q3_K", 11}, {"Q4_K", 12},
                                                    {"Q5_K", 13}, {"Q6_K", 14}};
  for (const auto& [name, id] : types) {
    std::string path = std::string(H3_SOURCE_DIR) + "/tests/data/codec/" + name + ".json";
    for (char& c : path) c = c == 'Q' || c == 'K' ? static_cast<char>(c - 'A' + 'a') : c;
    const std::vector<CodecVector> vectors = codec_vectors(Json::parse(read_file(path), path), path);
    const CodecVector& vector = vectors.at(0);
    std::string row(reinterpret_cast<const char*>(vector.matrix.data.data()), vector.matrix.data.size());
    GgufFile file;
    file.tensor("m", id, {2, vector.matrix.cols}, row + row);
    const std::string bytes = file.bytes();
    const std::vector<float> found = values_of(*open_gguf("x", bytes_of(bytes)), "m");
    ASSERT_EQ(found.size(), 2 * vector.values.size()) << name;
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(vector.values[i % vector.values.size()]))
          << name << " " << i;
    }
  }
}

// A transformer as stable-diffusion.cpp converts it: no metadata, the names of ComfyUI, here behind a prefix.
TEST(Gguf, HoldsATransformer) {
  const auto toy = testing::toy_source();
  GgufFile file;
  for (const TensorInfo& info : toy->tensors()) {
    file.tensor("model.diffusion_model." + info.name, kF32, info.dims, GgufFile::floats(toy->values(info.name)));
  }
  const std::string bytes = file.bytes();
  std::shared_ptr<TensorSource> source = open_gguf("dit.gguf", bytes_of(bytes));
  const std::vector<Recognised> found = recognise(*source);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].role, Role::dit);
  EXPECT_EQ(found[0].prefix, "model.diffusion_model.");
  Component component = testing::component_of(source);
  component.prefix = found[0].prefix;
  Log log;
  const dit::Source read = dit::read_source(component, log);
  const dit::Source expected = dit::read_source(testing::component_of(toy), log);
  ASSERT_EQ(read.blocks.size(), expected.blocks.size());
  std::vector<float> a(static_cast<size_t>(read.blocks[1].qkv.rows * read.blocks[1].qkv.cols)), b(a.size());
  read.blocks[1].qkv.decode_rows(0, read.blocks[1].qkv.rows, a.data());
  expected.blocks[1].qkv.decode_rows(0, expected.blocks[1].qkv.rows, b.data());
  EXPECT_EQ(a, b);
  EXPECT_EQ(read.final_norm, expected.final_norm);
}

TEST(Gguf, NamesOfLlamaCppBecomeCanonical) {
  GgufFile file;
  const std::string one = GgufFile::floats({1});
  for (const char* name :
       {"token_embd.weight", "output_norm.weight", "blk.3.attn_q.weight", "blk.3.ffn_norm.weight",
        "blk.12.attn_q_norm.weight", "v.blk.0.ln1.bias", "v.blk.0.ffn_down.weight", "v.post_ln.weight", "mm.2.bias",
        "v.deepstack.16.fc1.weight", "v.deepstack.8.norm.bias", "v.position_embd.weight"}) {
    file.tensor(name, kF32, {1}, one);
  }
  const std::string bytes = file.bytes();
  const auto source = open_gguf("x", bytes_of(bytes));
  for (const char* name :
       {"model.embed_tokens.weight", "model.norm.weight", "model.layers.3.self_attn.q_proj.weight",
        "model.layers.3.post_attention_layernorm.weight", "model.layers.12.self_attn.q_norm.weight",
        "visual.blocks.0.norm1.bias", "visual.blocks.0.mlp.linear_fc2.weight", "visual.merger.norm.weight",
        "visual.merger.linear_fc2.bias", "visual.deepstack_merger_list.1.linear_fc1.weight",
        "visual.deepstack_merger_list.0.norm.bias", "visual.pos_embed.weight"}) {
    EXPECT_NE(source->find(name), nullptr) << name;
  }
}

TEST(Gguf, KernelsOfFiveAxesArePutTogether) {
  const std::vector<float> first = {1, 2, 3, 4, 5, 6, 7, 8}, second = {11, 12, 13, 14, 15, 16, 17, 18};
  const std::vector<float> whole = {1, 2, 11, 12, 3, 4, 13, 14, 5, 6, 15, 16, 7, 8, 17, 18};
  const std::vector<int64_t> dims = {2, 2, 2, 1, 2};
  GgufFile llama;  // two frames under the names of llama.cpp
  llama.tensor("v.patch_embd.weight", kF32, {2, 2, 1, 2}, GgufFile::floats(first));
  llama.tensor("v.patch_embd.weight.1", kF32, {2, 2, 1, 2}, GgufFile::floats(second));
  GgufFile numbered;
  numbered.tensor("visual.patch_embed.proj.0.weight", kF32, {2, 2, 1, 2}, GgufFile::floats(first));
  numbered.tensor("visual.patch_embed.proj.1.weight", kF32, {2, 2, 1, 2}, GgufFile::floats(second));
  GgufFile merged;  // the first two axes as one
  merged.tensor("visual.patch_embed.proj.weight", kF32, {4, 2, 1, 2}, GgufFile::floats(whole));
  merged.tensor("visual.patch_embed.proj.bias", kF32, {2}, GgufFile::floats({0, 0}));
  for (const GgufFile* file : {&llama, &numbered, &merged}) {
    const std::string bytes = file->bytes();
    const auto source = open_gguf("x", bytes_of(bytes));
    const TensorInfo* info = source->find("visual.patch_embed.proj.weight");
    ASSERT_NE(info, nullptr);
    EXPECT_EQ(info->dims, dims);
    EXPECT_EQ(values_of(*source, info->name), whole);
  }
}

TEST(Gguf, CarriesATokenizer) {
  GgufFile file;
  file.raw_value("tokenizer.ggml.merges", 9, GgufFile::strings({"a b", "ab c"}));
  file.tensor("m", kF32, {1}, GgufFile::floats({1}));
  const std::string bytes = file.bytes();
  const auto source = open_gguf("x.gguf", bytes_of(bytes));
  ASSERT_NE(source->tokenizer(), nullptr);
  EXPECT_EQ(source->tokenizer()->merges_txt, "a b\nab c\n");
  EXPECT_EQ(source->tokenizer()->origin, "x.gguf");
}

// Every damage is an error that names the file, the place and, where there is one, the tensor.
struct Damage {
  const char* name;
  std::string bytes;
  std::vector<std::string> parts;
};

std::vector<Damage> damages() {
  const std::string one = GgufFile::floats({1});
  const auto n = [](uint64_t value, int width) { return GgufFile::number(value, width); };
  const std::string good = GgufFile().tensor("m", kF32, {2, 3}, std::string(24, '\1')).bytes();
  const std::string start = "GGUF" + n(3, 4);
  const std::string name_m = GgufFile::string("m");
  return {
      {"magic", "GGUX" + good.substr(4), {"offset 0", "does not start with 'GGUF'"}},
      {"version", "GGUF" + n(9, 4) + good.substr(8), {"offset 4", "version 9", "2 and 3"}},
      {"big endian", "GGUF" + std::string("\0\0\0\3", 4) + good.substr(8), {"big-endian"}},
      {"tensor count", start + n(uint64_t{1} << 60, 8) + n(0, 8), {"offset 8", "1152921504606846976", "bytes follow"}},
      {"value count", start + n(1, 8) + n(~uint64_t{0}, 8) + std::string(40, '\1'), {"offset 16", "metadata entries"}},
      {"key length", start + n(0, 8) + n(1, 8) + n(~uint64_t{0}, 8) + std::string(20, 'x'), {"offset 24", "length of"}},
      {"string value",
       start + n(0, 8) + n(1, 8) + GgufFile::string("k") + n(8, 4) + n(uint64_t{1} << 63, 8) + one,
       {"metadata entry 'k'", "9223372036854775808"}},
      {"array length",
       GgufFile().raw_value("k", 9, n(4, 4) + n(uint64_t{1} << 62, 8)).bytes(),
       {"length of metadata entry 'k'"}},
      {"array of arrays", GgufFile().raw_value("k", 9, n(9, 4) + n(1, 8)).bytes(), {"'k'", "array", "9"}},
      {"value type", GgufFile().raw_value("k", 77, n(0, 8)).bytes(), {"'k'", "value type 77"}},
      {"key twice", GgufFile().u32("k", 1).u32("k", 2).bytes(), {"'k'", "twice"}},
      {"alignment", GgufFile().u32("general.alignment", 48).bytes(), {"general.alignment is 48", "power of two"}},
      {"alignment 0", GgufFile().u32("general.alignment", 0).bytes(), {"general.alignment is 0"}},
      {"split", GgufFile().raw_value("split.count", 2, n(3, 2)).bytes(), {"one of 3 parts"}},
      {"no tensors", GgufFile().bytes(), {"no tensors"}},
      {"empty name", GgufFile().entry("", kF32, {1}, 0).bytes(), {"offset 24", "tensor 0 has 0 bytes"}},
      {"odd name", GgufFile().entry("a\tb", kF32, {1}, 0).bytes(), {"not plain text"}},
      {"ndim 7",
       start + n(1, 8) + n(0, 8) + name_m + n(7, 4) + std::string(80, '\1'),
       {"'m'", "offset 24", "7 axes", "at most 4"}},
      {"shape", GgufFile().entry("m", kF32, {int64_t{1} << 40, int64_t{1} << 40}, 0).bytes(), {"'m'", "out of range"}},
      {"shape sign", GgufFile().entry("m", kF32, {-1}, 0).bytes(), {"'m'", "18446744073709551615", "out of range"}},
      {"type", GgufFile().entry("m", 99, {1}, 0).bytes(), {"'m'", "ggml type 99", "Q4_K"}},
      {"foreign type", GgufFile().entry("m", 20, {32}, 0).bytes(), {"'m'", "IQ4_NL", "not supported"}},
      {"blocks",
       GgufFile().tensor("m", kQ4K, {2, 300}, std::string(400, '\0')).bytes(),
       {"'m'", "rows of 300", "Q4_K", "256"}},
      {"vector of blocks", GgufFile().tensor("m", kQ4K, {256}, std::string(144, '\0')).bytes(), {"'m'", "vector"}},
      {"unaligned",
       GgufFile().entry("m", kF32, {1}, 4).bytes() + std::string(64, '\0'),
       {"'m'", "multiple of the alignment 32"}},
      {"past the end",
       GgufFile().entry("m", kF32, {1}, uint64_t{1} << 40).bytes(),
       {"'m'", "1099511627776", "truncated"}},
      {"offset overflow", GgufFile().entry("m", kF32, {1}, ~uint64_t{31}).bytes(), {"'m'", "truncated"}},
      {"overlap",
       GgufFile().tensor("a", kF16, {64}, std::string(128, '\0')).entry("b", kF32, {1}, 32).bytes(),
       {"'b'", "overlap", "'a'"}},
      {"name twice", GgufFile().tensor("m", kF32, {1}, one).tensor("m", kF32, {1}, one).bytes(), {"'m'", "twice"}},
      {"two spellings",
       GgufFile()
           .tensor("token_embd.weight", kF32, {1}, one)
           .tensor("model.embed_tokens.weight", kF32, {1}, one)
           .bytes(),
       {"two spellings", "'model.embed_tokens.weight'"}},
  };
}

TEST(Gguf, DamageIsNamed) {
  for (const Damage& damage : damages()) {
    try {
      open_gguf("bad.gguf", bytes_of(damage.bytes));
      ADD_FAILURE() << damage.name << ": opened";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.code(), Code::data) << text;
      EXPECT_EQ(text.find('\n'), text.npos);
      EXPECT_NE(text.find("bad.gguf"), text.npos) << damage.name << ": " << text;
      const bool whole = std::string(damage.name) == "split";  // a file that is sound, but a part
      EXPECT_EQ(text.find("offset ") == text.npos, whole) << damage.name << ": " << text;
      for (const std::string& part : damage.parts) {
        EXPECT_NE(text.find(part), text.npos) << damage.name << ": " << text << " lacks " << part;
      }
    }
  }
}

// Cut anywhere, the file is refused: a header that stops, or data that are missing.
TEST(Gguf, TruncationIsNoticedAtEveryByte) {
  GgufFile file;
  file.text("general.architecture", "h3").raw_value("list", 9, GgufFile::strings({"a", "bc"}));
  file.tensor("first", kF32, {2, 3}, std::string(24, '\1')).tensor("last", kQ4K, {1, 256}, std::string(144, '\1'));
  const std::string bytes = file.bytes();
  EXPECT_NO_THROW(open_gguf("x", bytes_of(bytes)));
  for (size_t n = 0; n < bytes.size(); ++n) {
    const std::string cut = bytes.substr(0, n);
    EXPECT_THROW(open_gguf("x", bytes_of(cut)), Error) << n;
  }
}

// Any one bit of the header: refused, or read without a crash.
TEST(Gguf, FlippedBitsOfTheHeaderDoNoHarm) {
  GgufFile file;
  file.text("general.architecture", "h3").u32("general.alignment", 32);
  file.tensor("first.weight", kF32, {2, 3}, std::string(24, '\1'))
      .tensor("last", kQ4K, {1, 256}, std::string(144, '\1'));
  const std::string bytes = file.bytes();
  int refused = 0;
  for (size_t bit = 0; bit < 8 * file.header().size(); ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    try {
      const auto source = open_gguf("x", bytes_of(flipped));
      for (const TensorInfo& info : source->tensors()) values_of(*source, info.name);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace h3
