// GGML blocks built field by field from their definition, by packers that share nothing with the decoders: every
// element has its own level and every run its own scale.
#include <gtest/gtest.h>

#include <cstring>

#include "codec/scalar.h"
#include "quant/matrix.h"

namespace h3 {
namespace {

// Two blocks of rubbish around the one under test, so that offsets count.
struct Block {
  std::vector<uint8_t> bytes;
  Format format;
  int elements;
  Block(Format f, int n) : bytes(static_cast<size_t>(row_of(f).data_bytes(1, n)), 0), format(f), elements(n) {}
  void half(int64_t at, float value) {
    const uint16_t bits = f32_to_f16(value);
    bytes[at] = static_cast<uint8_t>(bits);
    bytes[at + 1] = static_cast<uint8_t>(bits >> 8);
  }
  void bits(int64_t at, int shift, int value) { bytes[at] = static_cast<uint8_t>(bytes[at] | value << shift); }
  std::vector<float> decode() const {
    std::vector<uint8_t> all(3 * bytes.size(), 0x11);
    std::copy(bytes.begin(), bytes.end(), all.begin() + static_cast<std::ptrdiff_t>(2 * bytes.size()));
    StoredMatrix m;
    m.format = format;
    m.rows = 3;
    m.cols = elements;
    m.data = std::as_bytes(std::span(all));
    check_matrix(m, "block");
    std::vector<float> out(static_cast<size_t>(elements));
    row_of(format).decode_row(m, 2, out.data());
    return out;
  }
};

constexpr float kD = 0.0625f, kM = 0.25f;  // exact halves, so that the expected products are exact

int level(int e, int count) { return (e * 7 + e / 16 * 3 + 5) % count; }

TEST(Q8_0, Block) {
  Block b(Format::q8_0, 32);
  b.half(0, kD);
  for (int e = 0; e < 32; ++e) b.bytes[2 + e] = static_cast<uint8_t>(static_cast<int8_t>(e * 8 - 128));
  const std::vector<float> y = b.decode();
  for (int e = 0; e < 32; ++e) EXPECT_EQ(y[e], static_cast<float>(e * 8 - 128) * kD) << e;
}

TEST(Q4_0, Block) {
  Block b(Format::q4_0, 32);
  b.half(0, kD);
  for (int e = 0; e < 32; ++e) b.bits(2 + e % 16, e < 16 ? 0 : 4, level(e, 16));
  const std::vector<float> y = b.decode();
  for (int e = 0; e < 32; ++e) EXPECT_EQ(y[e], static_cast<float>(level(e, 16) - 8) * kD) << e;
}

TEST(Q4_1, Block) {
  Block b(Format::q4_1, 32);
  b.half(0, kD);
  b.half(2, kM);
  for (int e = 0; e < 32; ++e) b.bits(4 + e % 16, e < 16 ? 0 : 4, level(e, 16));
  const std::vector<float> y = b.decode();
  for (int e = 0; e < 32; ++e) EXPECT_EQ(y[e], static_cast<float>(level(e, 16)) * kD + kM) << e;
}

void pack_five(Block& b, int64_t fifth, int64_t low) {
  for (int e = 0; e < 32; ++e) {
    b.bits(low + e % 16, e < 16 ? 0 : 4, level(e, 32) & 15);
    b.bits(fifth + e / 8, e % 8, level(e, 32) >> 4);
  }
}

TEST(Q5_0, Block) {
  Block b(Format::q5_0, 32);
  b.half(0, kD);
  pack_five(b, 2, 6);
  const std::vector<float> y = b.decode();
  for (int e = 0; e < 32; ++e) EXPECT_EQ(y[e], static_cast<float>(level(e, 32) - 16) * kD) << e;
}

TEST(Q5_1, Block) {
  Block b(Format::q5_1, 32);
  b.half(0, kD);
  b.half(2, kM);
  pack_five(b, 4, 8);
  const std::vector<float> y = b.decode();
  for (int e = 0; e < 32; ++e) EXPECT_EQ(y[e], static_cast<float>(level(e, 32)) * kD + kM) << e;
}

// Element e of a 256 block lies in half e / 128, quarter (e % 128) / 32, lane e % 32.
TEST(Q2_K, Block) {
  Block b(Format::q2_k, 256);
  b.half(80, kD);
  b.half(82, kM);
  for (int run = 0; run < 16; ++run) b.bytes[run] = static_cast<uint8_t>((run * 5 + 1) % 16 | (run * 3 + 2) % 16 << 4);
  for (int e = 0; e < 256; ++e) b.bits(16 + e / 128 * 32 + e % 32, e % 128 / 32 * 2, level(e, 4));
  const std::vector<float> y = b.decode();
  for (int e = 0; e < 256; ++e) {
    const int run = e / 16;
    const float want =
        kD * static_cast<float>((run * 5 + 1) % 16 * level(e, 4)) - kM * static_cast<float>((run * 3 + 2) % 16);
    EXPECT_EQ(y[e], want) << e;
  }
}

TEST(Q3_K, Block) {
  Block b(Format::q3_k, 256);
  b.half(108, kD);
  for (int run = 0; run < 16; ++run) {
    const int six = (run * 11 + 3) % 64;  // stored with an offset of 32
    b.bits(96 + run % 8, run < 8 ? 0 : 4, six & 15);
    b.bits(96 + 8 + run % 4, run / 4 * 2, six >> 4);
  }
  for (int e = 0; e < 256; ++e) {
    b.bits(32 + e / 128 * 32 + e % 32, e % 128 / 32 * 2, level(e, 8) & 3);
    b.bits(e % 32, e / 32, level(e, 8) >> 2);
  }
  const std::vector<float> y = b.decode();
  for (int e = 0; e < 256; ++e) {
    EXPECT_EQ(y[e], kD * static_cast<float>(((e / 16 * 11 + 3) % 64 - 32) * (level(e, 8) - 4))) << e;
  }
}

void pack_k_pairs(Block& b, int64_t at) {
  for (int run = 0; run < 8; ++run) {
    const int scale = (run * 13 + 7) % 64, least = (run * 17 + 50) % 64;
    if (run < 4) {
      b.bits(at + run, 0, scale);
      b.bits(at + 4 + run, 0, least);
    } else {
      b.bits(at + 4 + run, 0, scale & 15);
      b.bits(at + 4 + run, 4, least & 15);
      b.bits(at + run - 4, 6, scale >> 4);
      b.bits(at + run, 6, least >> 4);
    }
  }
}

float k_value(int e, int levels) {
  const int run = e / 32;
  return kD * static_cast<float>((run * 13 + 7) % 64 * level(e, levels)) -
         kM * static_cast<float>((run * 17 + 50) % 64);
}

TEST(Q4_K, Block) {
  Block b(Format::q4_k, 256);
  b.half(0, kD);
  b.half(2, kM);
  pack_k_pairs(b, 4);
  for (int e = 0; e < 256; ++e) b.bits(16 + e / 64 * 32 + e % 32, e % 64 < 32 ? 0 : 4, level(e, 16));
  const std::vector<float> y = b.decode();
  for (int e = 0; e < 256; ++e) EXPECT_EQ(y[e], k_value(e, 16)) << e;
}

TEST(Q5_K, Block) {
  Block b(Format::q5_k, 256);
  b.half(0, kD);
  b.half(2, kM);
  pack_k_pairs(b, 4);
  for (int e = 0; e < 256; ++e) {
    b.bits(48 + e / 64 * 32 + e % 32, e % 64 < 32 ? 0 : 4, level(e, 32) & 15);
    b.bits(16 + e % 32, e / 32, level(e, 32) >> 4);
  }
  const std::vector<float> y = b.decode();
  for (int e = 0; e < 256; ++e) EXPECT_EQ(y[e], k_value(e, 32)) << e;
}

TEST(Q6_K, Block) {
  Block b(Format::q6_k, 256);
  b.half(208, kD);
  for (int run = 0; run < 16; ++run) b.bytes[192 + run] = static_cast<uint8_t>(static_cast<int8_t>(run * 16 - 128));
  for (int e = 0; e < 256; ++e) {
    const int quarter = e % 128 / 32;
    b.bits(e / 128 * 64 + quarter % 2 * 32 + e % 32, quarter < 2 ? 0 : 4, level(e, 64) & 15);
    b.bits(128 + e / 128 * 32 + e % 32, quarter * 2, level(e, 64) >> 4);
  }
  const std::vector<float> y = b.decode();
  for (int e = 0; e < 256; ++e) {
    EXPECT_EQ(y[e], kD * static_cast<float>((e / 16 * 16 - 128) * (level(e, 64) - 32))) << e;
  }
}

}  // namespace
}  // namespace h3
