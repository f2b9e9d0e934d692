#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "store/tensor_source.h"
#include "tests/support/temp_folder.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

class Safetensors : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }

  // A file of raw parts: the header length says `length` when given, else the true one.
  std::string put(const std::string& name, const std::string& header, size_t payload, int64_t length = -1) const {
    const uint64_t n = length < 0 ? header.size() : static_cast<uint64_t>(length);
    std::string bytes(8, '\0');
    for (int i = 0; i < 8; ++i) bytes[static_cast<size_t>(i)] = static_cast<char>(n >> (8 * i));
    std::ofstream(path(name), std::ios::binary) << bytes << header << std::string(payload, '\1');
    return path(name);
  }

  void put_text(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }

  // Opening `name` fails with a message that holds every one of `parts`, on one line.
  void expect_error(const std::string& name, std::initializer_list<const char*> parts) const {
    try {
      open_safetensors(name);
      FAIL() << "opened " << name;
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(text.find('\n'), text.npos);
      EXPECT_NE(text.find(folder_.path()), text.npos) << text;
      for (const char* part : parts) EXPECT_NE(text.find(part), text.npos) << text << " lacks " << part;
    }
  }

  // The shards of a two-file checkpoint with tensors a (4 bytes) and b (8 bytes).
  void put_shards() const {
    put("s1.safetensors", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4);
    put("s2.safetensors", R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  }

  TempFolder folder_;
};

TEST_F(Safetensors, RoundTrip) {
  const float values[6] = {1, 2, 3, 4, 5, 6};
  const uint8_t bytes[3] = {7, 8, 9};
  const std::vector<TensorToWrite> tensors = {
      {"u", Format::u8, {3}, std::as_bytes(std::span(bytes))},
      {"m", Format::f32, {2, 3}, std::as_bytes(std::span(values))},
      {"empty", Format::bf16, {0, 4}, {}},
      {"scalar", Format::f32, {}, std::as_bytes(std::span(values, 1))},
  };
  write_safetensors(path("x.safetensors"), tensors, {{"k", "v\""}});
  const auto source = open_safetensors(path("x.safetensors"));
  ASSERT_EQ(source->tensors().size(), 4u);
  EXPECT_EQ(source->tensors()[0].name, "m");  // by falling element size, then name
  EXPECT_EQ(source->metadata().at("k"), "v\"");
  const TensorInfo* m = source->find("m");
  ASSERT_NE(m, nullptr);
  EXPECT_EQ(m->dims, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(m->offset % 8, 0u);
  EXPECT_EQ(std::memcmp(m->data.data(), values, sizeof values), 0);
  EXPECT_TRUE(source->find("empty")->data.empty());
  EXPECT_EQ(source->find("scalar")->dims.size(), 0u);
  EXPECT_EQ(source->find("absent"), nullptr);
  EXPECT_EQ(source->id(), open_safetensors(path("x.safetensors"))->id());
}

TEST_F(Safetensors, EveryDtypeHasItsSize) {
  const std::pair<const char*, int> kinds[] = {
      {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},  {"I32", 4},     {"I16", 2},     {"I8", 1},
      {"U64", 8}, {"U32", 4}, {"U16", 2}, {"U8", 1},   {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
  for (const auto& [dtype, size] : kinds) {
    const std::string header = std::string(R"({"t":{"dtype":")") + dtype + R"(","shape":[3],"data_offsets":[0,)" +
                               std::to_string(3 * size) + "]}}";
    EXPECT_NO_THROW(open_safetensors(put("t.safetensors", header, static_cast<size_t>(3 * size)))) << dtype;
  }
}

TEST_F(Safetensors, HeaderOrderDoesNotMatter) {
  const auto source = open_safetensors(put(
      "o.safetensors",
      R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]},"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}   )",
      5));
  EXPECT_EQ(source->tensors()[0].name, "a");
  EXPECT_EQ(source->tensors()[1].name, "b");
}

TEST_F(Safetensors, RejectsBadHeaders) {
  put_text("short", "abc");
  expect_error(path("short"), {"3 bytes"});
  expect_error(put("long", "{}", 0, 3), {"header length is 3", "2 bytes follow"});
  expect_error(put("huge", "{}", 0, int64_t{1} << 62), {"header length"});
  expect_error(put("text", "[1]", 0), {"does not start with '{'"});
  expect_error(put("json", "{\"a\":", 0), {"invalid JSON at byte 5"});
  expect_error(put("meta", R"({"__metadata__":{"a":1}})", 0), {"__metadata__ entry 'a'"});
  expect_error(path("absent.safetensors"), {"cannot open"});
}

TEST_F(Safetensors, RejectsBadEntries) {
  const struct {
    const char* header;
    size_t payload;
    std::initializer_list<const char*> parts;
  } cases[] = {
      {R"({"a":7})", 0, {"tensor 'a'", "not an object"}},
      {R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4, {"tensor 'a'", "'F33'", "allowed are F64, F32"}},
      {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, {"tensor 'a'", "\"dtype\""}},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, {"tensor 'a'", "-1"}},
      {R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4, {"tensor 'a'", "1.5"}},
      {R"({"a":{"dtype":"F32","shape":"x","data_offsets":[0,4]}})", 4, {"tensor 'a'", "\"shape\""}},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, {"tensor 'a'", "\"data_offsets\""}},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, {"tensor 'a'", "[4, 0]"}},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, {"tensor 'a'", "[0, 8]", "4 bytes"}},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, {"tensor 'a'", "4 bytes", "[2]", "8"}},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4, {"tensor 'a'", "overflows"}},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       4,
       {"\"a\" twice"}},
      {R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       4,
       {"tensor 'b'", "tensor 'a' ends at 3", "overlaps"}},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       4,
       {"tensor 'b'", "tensor 'a' ends at 1", "gaps"}},
      {R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})", 4, {"tensor 'b'", "start of the data", "gaps"}},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 4, {"3 bytes follow the last tensor"}},
  };
  for (const auto& c : cases) expect_error(put("x.safetensors", c.header, c.payload), c.parts);
}

TEST_F(Safetensors, TruncationAtEveryByteIsAnError) {
  const float values[6] = {1, 2, 3, 4, 5, 6};
  write_safetensors(path("x.safetensors"), {{"m", Format::f32, {2, 3}, std::as_bytes(std::span(values))}},
                    {{"k", "v"}});
  const size_t size = fs::file_size(path("x.safetensors"));
  for (size_t n = 0; n < size; ++n) {
    fs::copy_file(path("x.safetensors"), path("cut"), fs::copy_options::overwrite_existing);
    fs::resize_file(path("cut"), n);
    expect_error(path("cut"), {});
  }
}

TEST_F(Safetensors, OpensShards) {
  put_shards();
  put_text("m.safetensors.index.json",
           R"({"metadata":{"total_size":12},"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})");
  for (const std::string& name : {path("m.safetensors.index.json"), folder_.path()}) {
    const auto source = open_safetensors(name);
    EXPECT_EQ(source->tensors().size(), 2u);
    EXPECT_EQ(source->files().size(), 2u);
    EXPECT_EQ(source->find("b")->file, path("s2.safetensors"));
  }
  EXPECT_NE(open_safetensors(path("s1.safetensors"))->id(), open_safetensors(folder_.path())->id());
}

TEST_F(Safetensors, RejectsIndicesThatDisagree) {
  put_shards();
  const struct {
    const char* index;
    std::initializer_list<const char*> parts;
  } cases[] = {
      {R"({"weight_map":{"a":"s1.safetensors","b":"s3.safetensors"}})", {"'s3.safetensors' is missing"}},
      {R"({"weight_map":{"a":"s1.safetensors","b":"../s2.safetensors"}})", {"tensor 'b'", "'../s2.safetensors'"}},
      {R"({"weight_map":{"a":"s1.safetensors","b":"/etc/passwd"}})", {"tensor 'b'", "'/etc/passwd'"}},
      {R"({"weight_map":{"a":"s1.safetensors","b":".."}})", {"tensor 'b'", "'..'"}},
      {R"({"weight_map":{"a":"s1.safetensors","b":7}})", {"tensor 'b'"}},
      {R"({"weight_map":{"a":"s2.safetensors","b":"s1.safetensors"}})",
       {"tensor 'a'", "'s1.safetensors'", "'s2.safetensors'"}},
      {R"({"weight_map":{"a":"s1.safetensors","c":"s2.safetensors"}})", {"tensor 'b'", "does not list"}},
      {R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors","c":"s2.safetensors"}})", {"tensor 'c'"}},
      {R"({"metadata":{"total_size":13},"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})",
       {"13", "12 bytes"}},
      {R"({"weight_map":{}})", {"weight_map"}},
      {R"([])", {"weight_map"}},
  };
  for (const auto& c : cases) {
    put_text("m.safetensors.index.json", c.index);
    expect_error(path("m.safetensors.index.json"), c.parts);
  }
}

TEST_F(Safetensors, FolderMustBeUnambiguous) {
  expect_error(folder_.path(), {"no safetensors"});
  put_shards();
  expect_error(folder_.path(), {"2 checkpoints", "s1.safetensors", "s2.safetensors"});
}

TEST_F(Safetensors, UnwritableTargetIsAnError) {
  EXPECT_THROW(write_safetensors(path("no/such/folder.safetensors"), {}, {}), Error);
}

}  // namespace
}  // namespace h3
