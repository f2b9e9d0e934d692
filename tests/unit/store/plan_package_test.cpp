#include "store/plan_package.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <string_view>

#include "base/error.h"
#include "base/file_map.h"
#include "base/hash.h"

namespace h3 {
namespace {

std::vector<std::byte> data_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

PlanPackage sample() {
  PlanPackage package;
  package.key = {{"width", "bf16"}, {"sm", "90"}, {"driver", "13.0"}};
  package.parameters = {{"norm1.weight", "f32", {5376}}, {"attn.qkv_proj.weight", "q4tp", {21504, 5376}}};
  package.matmuls = {{"5376x21504 bf16>bf16", 1448, 2048, data_of("algorithm")}, {"empty", 0, 1, {}}};
  package.attentions = {{"attention 2 3 1874", 1873, 1874, data_of("{\"engine\": 1}")}};
  package.report = Json::object({{"replays", Json::array()}});
  return package;
}

std::string refusal(const std::vector<std::byte>& bytes) {
  try {
    PlanPackage::parse(bytes, "plans.h3p");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::data) << error.what();
    EXPECT_NE(std::string(error.what()).find("plans.h3p"), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}

// The file with another JSON of the same data, its sizes and hash right.
std::vector<std::byte> with_json(const std::function<std::string(std::string)>& change) {
  std::vector<std::byte> bytes = sample().bytes();
  uint64_t size = 0;
  std::memcpy(&size, &bytes[16], 8);
  const std::string json = change({reinterpret_cast<const char*>(&bytes[40]), static_cast<size_t>(size)});
  std::vector<std::byte> body = data_of(json);
  body.insert(body.end(), bytes.begin() + 40 + static_cast<std::ptrdiff_t>(size), bytes.end());
  bytes.resize(40);
  const uint64_t count = json.size(), hash = hash64(body);
  std::memcpy(&bytes[16], &count, 8);
  std::memcpy(&bytes[32], &hash, 8);
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

std::vector<std::byte> replaced(const std::string& from, const std::string& to) {
  return with_json([&](std::string json) {
    const size_t at = json.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return json.replace(at, from.size(), to);
  });
}

TEST(PlanPackage, ComesBackAsItWas) {
  const PlanPackage package = sample(), again = PlanPackage::parse(package.bytes(), "plans.h3p");
  EXPECT_EQ(again.key, package.key);
  EXPECT_EQ(again.parameters, package.parameters);
  EXPECT_EQ(again.matmuls, package.matmuls);
  EXPECT_EQ(again.attentions, package.attentions);
  EXPECT_EQ(again.report.dump(), package.report.dump());
  EXPECT_EQ(again.bytes(), package.bytes());
  const std::string path = ::testing::TempDir() + "h3_plans.h3p";
  package.write(path);
  EXPECT_EQ(PlanPackage::read(path).matmuls, package.matmuls);
  std::remove(path.c_str());
}

TEST(PlanPackage, EveryCutAndEveryChangedByteIsRefused) {
  const std::vector<std::byte> whole = sample().bytes();
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(refusal({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}), "") << size;
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    std::vector<std::byte> changed = whole;
    changed[at] ^= std::byte{0x10};
    EXPECT_NE(refusal(changed), "") << at;
  }
  std::vector<std::byte> longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_NE(refusal(longer).find("at byte 16"), std::string::npos);
}

TEST(PlanPackage, RefusalsSayWhatAndWhere) {
  std::vector<std::byte> bytes = sample().bytes();
  bytes[8] = std::byte{2};
  EXPECT_NE(refusal(bytes).find("version 2, 1 is known, at byte 8"), std::string::npos) << refusal(bytes);
  EXPECT_NE(refusal(data_of("{}")).find("H3PLANS at byte 0"), std::string::npos);
  const struct {
    std::string from, to, says;
  } cases[] = {
      {"\"bytes\": 9", "\"bytes\": 900", "\"matmuls\""},
      {"\"offset\": 0", "\"offset\": -1", "\"matmuls\""},
      {"\"offset\": 0", "\"offset\": 1099511627776", "\"matmuls\""},
      {"\"offset\": 9", "\"offset\": 0", "data from 0 on, 9 is expected"},
      {"\"bytes\": 9", "\"bytes\": 8", "data from 9 on, 8 is expected"},
      {"\"upto\": 2048", "\"upto\": 1448", "no rows are above 1448"},
      {"\"upto\": 1874", "\"upto\": 1.5", "\"attentions\""},
      {"\"norm1.weight\"", "\"\"", "a text of 0 bytes"},
      {"5376\n", "0\n", "\"parameters\""},
      {"\"parameters\"", "\"parts\"", "\"parameters\""},
      {"\"90\"", "90", "\"key\""},
      {"{", "[", "JSON at byte 40"},
  };
  for (const auto& row : cases) {
    const std::string text = refusal(replaced(row.from, row.to));
    EXPECT_NE(text.find(row.says), std::string::npos) << row.from << ": " << text;
    EXPECT_NE(text.find("byte"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace h3
