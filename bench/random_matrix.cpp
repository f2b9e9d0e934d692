#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "bench/ops.h"
#include "codec/noise.h"
#include "codec/scalar.h"
#include "quant/matrix.h"

namespace h3 {
namespace {

uint64_t next_random(uint64_t& state) {
  state += 0x9e3779b97f4a7c15u;
  uint64_t z = state;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

// f16 fields of the blocks of GGUF formats that must be finite: offset of the first, how many, bytes of a block.
struct BlockScales {
  int64_t first, count, block;
};

BlockScales scales_of(Format format) {
  switch (format) {
    case Format::q8_0: return {0, 1, 34};
    case Format::q4_k: return {0, 2, 144};
    case Format::q6_k: return {208, 1, 210};
    default: fail(Code::usage, "no random weights in format %s", row_of(format).name);
  }
}

}  // namespace

StoredMatrix random_matrix(Format format, int64_t rows, int64_t cols, uint64_t seed) {
  const float size = std::sqrt(3.0f / static_cast<float>(cols));  // rows of about unit norm
  const auto bytes = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(row_of(format).data_bytes(rows, cols)));
  uint8_t* data = bytes->data();
  const int64_t count = static_cast<int64_t>(bytes->size());
  for (int64_t i = 0; i < count; i += 8) {
    const uint64_t word = next_random(seed);
    for (int64_t j = i; j < std::min(count, i + 8); ++j) data[j] = static_cast<uint8_t>(word >> (8 * (j - i)));
  }
  switch (format) {
    case Format::noise: {
      NoiseWeights noise;
      noise.amplitude = size;
      noise.seed = seed;
      std::copy_n(reinterpret_cast<const uint8_t*>(&noise), sizeof noise, data);
      break;
    }
    case Format::f8_e4m3: {  // codes 0 to 15 are multiples of 2^-9; the largest are NaN
      const int most = std::clamp(static_cast<int>(std::lround(size * 512)), 1, 15);
      for (int64_t i = 0; i < count; ++i)
        data[i] = static_cast<uint8_t>((data[i] & 0x80) | (data[i] & 0x7f) % (most + 1));
      break;
    }
    case Format::q4tp:
    case Format::q2tp: {
      const int64_t levels = format == Format::q4tp ? 16 : 8;
      uint8_t* params = data + rows * (cols / 32) * levels;
      for (int64_t r = 0; r < rows; ++r) {  // 32 rungs over a factor of four
        store_u16(params + 4 * r, f32_to_f16(std::log2(size / (format == Format::q4tp ? 8.0f : 1.5f)) - 1));
        store_u16(params + 4 * r + 2, f32_to_f16(1 / 16.0f));
      }
      break;
    }
    case Format::q8_row:
      for (int64_t r = 0; r < rows; ++r) store_u16(data + rows * cols + 2 * r, f32_to_f16(size / 127));
      break;
    default: {
      const BlockScales scales = scales_of(format);
      const float unit = size / (format == Format::q8_0 ? 127.0f : format == Format::q4_k ? 945.0f : 4096.0f);
      for (int64_t b = 0; b + scales.block <= count; b += scales.block) {
        for (int64_t i = 0; i < scales.count; ++i) store_u16(data + b + scales.first + 2 * i, f32_to_f16(unit));
      }
    }
  }
  StoredMatrix matrix;
  matrix.format = format;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.data = std::as_bytes(std::span(*bytes));
  matrix.keep_alive = bytes;
  return matrix;
}

}  // namespace h3
