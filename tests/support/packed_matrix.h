// Random matrices in every storage format, all values finite.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "codec/float8.h"
#include "quant/encode.h"

namespace h3 {

class PackedMaker {
 public:
  explicit PackedMaker(uint64_t seed) : state_(seed) {}

  // Columns fit every format when they are a multiple of 256.
  StoredMatrix make(Format format, int64_t rows, int64_t cols) {
    if (encode_refusal(format, rows, cols, options(cols)).empty()) return encoded(format, rows, cols);
    StoredMatrix m;
    m.format = format;
    m.rows = rows;
    m.cols = cols;
    auto planes = std::make_shared<std::vector<std::vector<std::byte>>>(4);
    m.keep_alive = planes;
    const auto fill = [&](size_t i, int64_t bytes) -> std::span<std::byte> {
      (*planes)[i].resize(static_cast<size_t>(bytes));
      for (std::byte& b : (*planes)[i]) b = static_cast<std::byte>(next());
      return (*planes)[i];
    };
    const std::span<std::byte> data = fill(0, row_of(format).data_bytes(rows, cols));
    m.data = data;
    for (int64_t block = 0; !half_fields(format).empty() && block < rows * cols / row_of(format).block_cols; ++block) {
      for (const int64_t field : half_fields(format)) {
        const uint16_t half = f32_to_f16(0.002f + 0.02f * uniform());
        std::memcpy(&data[block * row_of(format).data_bytes(1, row_of(format).block_cols) + field], &half, 2);
      }
    }
    if (format == Format::f8_e4m3 || format == Format::f8_e5m2) {
      for (std::byte& b : data) b &= std::byte{0xbf};  // small exponents: no NaN
      m.scale = floats(fill(1, 4 * rows));
    }
    if (format == Format::w4a8) {
      const std::span<std::byte> scale = fill(1, rows * (cols / 16));
      for (std::byte& b : scale) b = static_cast<std::byte>(f32_to_e4m3(20 + 300 * uniform()));
      m.scale = scale;
      m.scale2 = floats(fill(2, 4 * rows));
      m.codebook = floats(fill(3, 64));
      m.rotation = options(cols).rotation;
    }
    return m;
  }

  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }

 private:
  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;  // SplitMix64
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  static EncodeOptions options(int64_t cols) {
    EncodeOptions out;
    out.rotation = cols % 256 == 0 ? 256 : cols % 16 == 0 ? 16 : 0;
    return out;
  }

  StoredMatrix encoded(Format format, int64_t rows, int64_t cols) {
    std::vector<float> values(static_cast<size_t>(rows * cols));
    for (float& v : values) v = (uniform() + uniform() + uniform() - 1.5f) * (0.01f + uniform());
    const RowReader reader{rows, cols, [&](int64_t first, int64_t count, float* out) {
                             std::memcpy(out, &values[first * cols], static_cast<size_t>(count * cols) * 4);
                           }};
    ThreadPool pool(1);
    return encode_matrix(format, reader, "random", pool, options(cols)).matrix;
  }

  // Where a block holds halves.
  static std::vector<int64_t> half_fields(Format format) {
    switch (format) {
      case Format::q8_0:
      case Format::q4_0:
      case Format::q5_0: return {0};
      case Format::q4_1:
      case Format::q5_1:
      case Format::q4_k:
      case Format::q5_k: return {0, 2};
      case Format::q2_k: return {80, 82};
      case Format::q3_k: return {108};
      case Format::q6_k: return {208};
      default: return {};
    }
  }

  std::span<std::byte> floats(std::span<std::byte> plane) {
    for (size_t i = 0; i + 4 <= plane.size(); i += 4) {
      const float value = uniform() * 0.02f - 0.01f;
      std::memcpy(&plane[i], &value, 4);
    }
    return plane;
  }

  uint64_t state_;
};

inline std::vector<Format> weight_formats() {
  return {
#define H3_FORMAT(codec, name, bits, block, begin) Format::codec,
      H3_WEIGHT_FORMATS(H3_FORMAT)
#undef H3_FORMAT
  };
}

// The pieces behind each other, as loading a weight lays them.
inline StoredMatrix joined(const GatheredMatrix& from) {
  auto all = std::make_shared<std::array<std::vector<std::byte>, 5>>();
  StoredMatrix m;
  m.format = from.format;
  m.rows = from.rows.rows;
  m.cols = from.rows.cols;
  m.rotation = from.rows.rotation;
  std::span<const std::byte>* const planes[] = {&m.data, &m.scale, &m.scale2, &m.codebook, &m.pre_scale};
  for (size_t i = 0; i < all->size(); ++i) {
    for (const auto& piece : from.planes[i]) (*all)[i].insert((*all)[i].end(), piece.begin(), piece.end());
    *planes[i] = (*all)[i];
  }
  m.keep_alive = all;
  return m;
}

}  // namespace h3
