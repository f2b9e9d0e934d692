// Files of every kind, cut and with single bits flipped. The samples are the seeds of the fuzzers.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/file_map.h"
#include "store/open.h"
#include "store/recognise.h"
#include "store/weights.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

struct Sample {
  std::string name, bytes;
};

std::vector<Sample> samples() {
  std::vector<Sample> out;
  for (const char* kind : {"safetensors", "gguf"}) {
    const std::string folder = std::string(H3_SOURCE_DIR) + "/tests/fuzz/seeds/" + kind;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      out.push_back({kind + ("/" + entry.path().filename().string()), read_file(entry.path().string())});
    }
  }
  return out;
}

// Opens, recognises and decodes everything; says how it was refused, empty when it was not.
std::string refusal(const std::string& bytes) {
  try {
    Component component;
    component.source = open_checkpoint("file.bin", std::as_bytes(std::span(bytes.data(), bytes.size())));
    recognise(*component.source);
    const WeightBinder binder(component);
    for (const TensorInfo& info : component.source->tensors()) binder.values(&info);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("file.bin"), std::string::npos) << error.what();
    EXPECT_TRUE(error.code() == Code::data) << error.what();
    return error.what();
  }
  return "";
}

TEST(Damaged, TheSamplesAreSound) {
  EXPECT_GE(samples().size(), 9u);
  for (const Sample& sample : samples()) EXPECT_EQ(refusal(sample.bytes), "") << sample.name;
}

TEST(Damaged, CutAnywhereIsRefused) {
  for (const Sample& sample : samples()) {
    for (size_t n = 0; n < sample.bytes.size(); ++n) {
      ASSERT_NE(refusal(sample.bytes.substr(0, n)), "") << sample.name << " cut to " << n;
    }
  }
}

TEST(Damaged, AnyFlippedBitIsRefusedOrHarmless) {
  for (const Sample& sample : samples()) {
    int refused = 0;
    for (size_t bit = 0; bit < 8 * sample.bytes.size(); ++bit) {
      std::string flipped = sample.bytes;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
      refused += refusal(flipped).empty() ? 0 : 1;
    }
    EXPECT_GT(refused, 100) << sample.name;
  }
}

}  // namespace
}  // namespace h3
