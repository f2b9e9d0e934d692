// CMF: the format's own container read, decoded, rewritten; every way it can be wrong.
#include "store/cmf.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "base/hash.h"
#include "store/cmf_source.h"
#include "store/weights.h"
#include "tests/support/toy_cmf.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

std::string scratch(const std::string& name) {
  return (fs::temp_directory_path() / ("h3_cmf_" + std::to_string(::getpid()) + "_" + name)).string();
}

// The message of the error that opening the bytes gives; empty when they open.
std::string refusal(const std::vector<std::byte>& bytes) {
  try {
    const CmfFile file("toy.cmf", bytes);
    cmf_parts(std::make_shared<const CmfFile>("toy.cmf", bytes));
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::data);
    return error.what();
  }
}

TEST(Cmf, ReadsTheDirectoryOfTheReferenceContainer) {
  const ToyCmf toy = toy_cmf();
  const CmfFile file("toy.cmf", toy.bytes);
  ASSERT_EQ(file.tensors().size(), toy.directory.size());
  for (size_t i = 0; i < toy.directory.size(); ++i) {
    const Json& expected = toy.directory.at(i);
    const CmfTensor& tensor = file.tensors()[i];
    EXPECT_EQ(tensor.name, expected.at("name").as_string());
    EXPECT_EQ(tensor.dtype, expected.at("dtype").as_int());
    EXPECT_EQ(tensor.offset, 4096u + static_cast<uint64_t>(expected.at("off").as_int()));
    EXPECT_EQ(tensor.bytes, static_cast<uint64_t>(expected.at("nbytes").as_int()));
    const std::string hash = strf("%016llx", static_cast<unsigned long long>(hash64(file.payload(tensor))));
    EXPECT_EQ(hash, expected.at("hash64").as_string()) << tensor.name;
  }
  EXPECT_EQ(file.text_of(file.envelope().vocab), "{\"model\":{}}");
  EXPECT_EQ(file.declared_size(), toy.bytes.size());
  EXPECT_EQ(hash64(file.bytes_of(file.envelope().header)), file.envelope().header.hash);
  EXPECT_EQ(hash64(file.bytes_of(file.envelope().vocab)), file.envelope().vocab.hash);
}

TEST(Cmf, ComponentsAreSources) {
  const ToyCmf toy = toy_cmf();
  const std::vector<CmfPart> parts = cmf_parts(std::make_shared<const CmfFile>("toy.cmf", toy.bytes));
  ASSERT_EQ(parts.size(), 3u);  // transformer, conditioner with its tower, video VAE
  EXPECT_EQ(parts[0].role, Role::dit);
  EXPECT_EQ(parts[0].source->tensors().size(), 3u);  // its configuration is no tensor
  EXPECT_TRUE(parts[0].config.is_object());
  EXPECT_EQ(parts[1].role, Role::conditioner);
  EXPECT_NE(parts[1].source->find("vis.merger.linear_fc2.weight"), nullptr);
  EXPECT_EQ(parts[2].role, Role::video_vae);

  Component component;
  component.source = parts[0].source;
  component.prefix = parts[0].prefix;
  const WeightBinder binder(component);
  const StoredMatrix matrix = binder.matrix(binder.find("blocks.0.mlp.fc2.weight"));
  EXPECT_EQ(matrix.format, Format::q4tp);
  float row[64];
  row_of(Format::q4tp).decode_row(matrix, 0, row);
  EXPECT_EQ(row[0], -0.456656754f);  // spec formats A.8
  EXPECT_EQ(row[3], 0.260946721f);
}

// Through the reader and the writer, in pieces of every awkward size.
TEST(Cmf, RewritesTheReferenceContainerByteForByte) {
  const ToyCmf toy = toy_cmf();
  const CmfFile file("toy.cmf", toy.bytes);
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{4096}, size_t{1} << 20}) {
    std::vector<CmfEntry> entries;
    for (const CmfTensor& t : file.tensors()) entries.push_back({t.name, t.dtype, t.dims, t.bytes});
    const CmfSections sections{.vocab = file.bytes_of(file.envelope().vocab)};
    const std::string path = scratch("copy.cmf");
    CmfWriter writer(path, entries, sections, {.header_bytes = file.header_text().size()});
    for (const CmfTensor& t : file.tensors()) {
      std::span<const std::byte> rest = file.payload(t);
      while (!rest.empty()) {
        const std::span<const std::byte> now = rest.first(std::min(piece, rest.size()));
        writer.write(now);
        rest = rest.subspan(now.size());
      }
    }
    writer.commit(file.header_text());
    const FileMap copy(path);
    ASSERT_EQ(copy.bytes().size(), toy.bytes.size());
    EXPECT_TRUE(std::equal(copy.bytes().begin(), copy.bytes().end(), toy.bytes.begin())) << piece;
    fs::remove(path);
  }
}

TEST(Cmf, AnUnfinishedFileLeavesNothing) {
  const std::string path = scratch("half.cmf");
  {
    CmfWriter writer(path, {{"dit.x", 0, {4}, 16}}, {}, {.header_bytes = 2});
    const float values[2] = {1, 2};
    writer.write(std::as_bytes(std::span(values)));
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_FALSE(fs::exists(path + ".part"));
}

TEST(Cmf, StrongHashesAreThoseOfXxhash) {
  if (!StrongHash::available()) GTEST_SKIP() << "built without xxHash";
  StrongHash hash;
  EXPECT_EQ(hash.hex(), "99aa06d3014798d86001c324468d497f");  // the published value for no bytes
}

struct Fault {
  const char* name;
  size_t offset;
  uint64_t value;
  int bytes;
  const char* message;
};

// Offsets: the envelope as in spec formats A.1; the directory lies at 688, its records from 704 on.
const Fault kFaults[] = {
    {"magic", 0, 'X', 1, "not a CMF file"},
    {"version", 4, 3, 4, "offset 4: CMF version 3"},
    {"feature", 12, 0x10001, 4, "features 0x10001, of which 0x10000"},
    {"hot packs", 12, 0x11, 4, "of which 0x10 are"},
    {"empty header", 24, 0, 8, "a header of 0 bytes"},
    {"header past the end", 24, 1u << 30, 8, "the header lies at 128"},
    {"directory past the end", 32, 25000, 8, "the directory lies at 25000"},
    {"directory overflow", 40, ~0ull, 8, "the directory lies at 688"},
    {"tiny directory", 40, 8, 8, "a directory of 8 bytes"},
    {"data past the end", 56, 1u << 20, 8, "the data lies at 4096"},
    {"data alignment", 48, 4032, 8, "the data start at 4032"},
    {"tokenizer past the end", 80, 25420, 8, "the tokenizer lies at 25420"},
    {"section inside the envelope", 80, 64, 8, "the tokenizer lies at 64"},
    {"tensor count", 688, 1ull << 60, 8, "offset 688: 1152921504606846976 tensors"},
    {"name pool", 696, 1u << 20, 8, "with names at 1048576"},
    {"name offset", 704, 1u << 20, 4, "record 0 at offset 704: a name of"},
    {"name length", 708, 60000, 2, "record 0 at offset 704: a name of 60000"},
    {"dtype", 710, 17, 1, "'dit.blocks.0.mlp.fc1.weight' has dtype 17"},
    {"axes", 711, 7, 1, "'dit.blocks.0.mlp.fc1.weight' has 7 axes"},
    {"shape", 712, 1u << 31, 4, "'dit.blocks.0.mlp.fc1.weight' in format q2tp at offset 4096"},
    {"shape overflow", 712, ~0ull, 8, "the shape of tensor 'dit.blocks.0.mlp.fc1.weight' overflows"},
    {"blocks that do not divide", 716, 40, 4, "40 columns are not a multiple of 32"},
    {"payload alignment", 736, 4, 8, "at data offset 4; it must be a multiple of 64"},
    {"payload past the end", 736, 1u << 24, 8, "ends beyond the 21318 bytes of data"},
    {"payload length", 744, 43, 8, "43 bytes, but its shape needs 44"},
    {"payload overflow", 744, ~0ull, 8, "ends beyond"},
    {"format without a decoder", 710, 12, 1, "'dit.blocks.0.mlp.fc1.weight' at offset 4096 is stored as q1"},
};

TEST(Cmf, EveryFaultIsNamed) {
  for (const Fault& fault : kFaults) {
    std::vector<std::byte> bytes = toy_cmf().bytes;
    for (int i = 0; i < fault.bytes; ++i) patch(bytes, fault.offset + i, static_cast<uint8_t>(fault.value >> (8 * i)));
    const std::string message = refusal(bytes);
    EXPECT_NE(message.find("toy.cmf"), std::string::npos) << fault.name << ": " << message;
    EXPECT_NE(message.find(fault.message), std::string::npos) << fault.name << ": " << message;
    EXPECT_NE(message.find("offset "), std::string::npos) << fault.name << ": " << message;
  }
}

TEST(Cmf, EveryTruncationIsAnError) {
  const std::vector<std::byte> whole = toy_cmf().bytes;
  for (size_t size = 0; size < whole.size(); size += size < 1400 ? 1 : 97) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_NE(refusal(cut), "") << size;
  }
}

// Envelope, header and directory, bit by bit: refused by a message that names the file, or read without harm.
TEST(Cmf, AnyFlippedBitOfTheHeadIsRefusedOrHarmless) {
  const std::vector<std::byte> whole = toy_cmf().bytes;
  const CmfFile sound("toy.cmf", whole);
  const size_t end = sound.envelope().directory.offset + sound.envelope().directory.bytes;
  int refused = 0;
  for (size_t bit = 0; bit < 8 * end; ++bit) {
    std::vector<std::byte> bytes = whole;
    bytes[bit / 8] ^= std::byte(1u << bit % 8);
    try {
      for (const CmfPart& part : cmf_parts(std::make_shared<const CmfFile>("toy.cmf", bytes))) {
        Component component;
        component.source = part.source;
        component.prefix = part.prefix;
        const WeightBinder binder(component);
        for (const TensorInfo& info : part.source->tensors()) binder.values(&info);
      }
    } catch (const Error& error) {
      ++refused;
      EXPECT_NE(std::string(error.what()).find("toy.cmf"), std::string::npos) << bit << ": " << error.what();
    }
  }
  EXPECT_GT(refused, 2000);
}

TEST(Cmf, NamesAreUniqueAndUtf8) {
  std::vector<std::byte> bytes = toy_cmf().bytes;
  patch(bytes, 688 + 408, uint8_t{0xff});
  EXPECT_NE(refusal(bytes).find("is not UTF-8"), std::string::npos);
  bytes = toy_cmf().bytes;
  patch(bytes, 704 + 56, uint32_t{0});  // the second tensor has the name of the first
  EXPECT_NE(refusal(bytes).find("'dit.blocks.0.mlp.fc1.weight' is in the directory twice"), std::string::npos);
}

}  // namespace
}  // namespace h3
