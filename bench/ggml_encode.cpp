#include "bench/ggml_encode.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"

namespace h3 {
namespace {

float put_f16(uint8_t* p, float value) {
  const uint16_t half = f32_to_f16(value);
  store_u16(p, half);
  return f16_to_f32(half);
}

int nearest(float value, int low, int high) {
  return std::clamp(static_cast<int>(std::lrint(std::clamp(value, -1e6f, 1e6f))), low, high);
}

// The value of largest magnitude, with its sign.
float extreme(const float* w, int n) {
  float top = 0;
  for (int i = 0; i < n; ++i) {
    if (std::fabs(w[i]) > std::fabs(top)) top = w[i];
  }
  return top;
}

float over(float value, float by) { return by != 0 ? value / by : 0.0f; }

void block_q8_0(const float* w, uint8_t* p) {
  const float d = put_f16(p, std::fabs(extreme(w, 32)) / 127);
  for (int i = 0; i < 32; ++i) p[2 + i] = static_cast<uint8_t>(nearest(over(w[i], d), -127, 127));
}

void block_q4_0(const float* w, uint8_t* p) {
  const float d = put_f16(p, extreme(w, 32) / -8);
  const auto code = [&](int i) { return nearest(over(w[i], d) + 8, 0, 15); };
  for (int i = 0; i < 16; ++i) p[2 + i] = static_cast<uint8_t>(code(i) | code(i + 16) << 4);
}

void block_q4_k(const float* w, uint8_t* p) {
  float step[8], least[8];
  for (int b = 0; b < 8; ++b) {
    const auto [low, high] = std::minmax_element(w + 32 * b, w + 32 * b + 32);
    least[b] = std::max(0.0f, -*low);
    step[b] = std::max(0.0f, *high + least[b]) / 15;
  }
  const float d = put_f16(p, *std::max_element(step, step + 8) / 63);
  const float m = put_f16(p + 2, *std::max_element(least, least + 8) / 63);
  uint8_t* pairs = p + 4;
  std::fill_n(pairs, 12 + 128, uint8_t{0});
  for (int b = 0; b < 8; ++b) {
    const int s = nearest(over(step[b], d), 0, 63), l = nearest(over(least[b], m), 0, 63);
    if (b < 4) {
      pairs[b] = static_cast<uint8_t>(pairs[b] | s);
      pairs[b + 4] = static_cast<uint8_t>(pairs[b + 4] | l);
    } else {
      pairs[b + 4] = static_cast<uint8_t>((s & 15) | (l & 15) << 4);
      pairs[b - 4] = static_cast<uint8_t>(pairs[b - 4] | (s >> 4) << 6);
      pairs[b] = static_cast<uint8_t>(pairs[b] | (l >> 4) << 6);
    }
    for (int i = 0; i < 32; ++i) {
      const int q = nearest(over(w[32 * b + i] + m * static_cast<float>(l), d * static_cast<float>(s)), 0, 15);
      uint8_t& to = p[16 + b / 2 * 32 + i];
      to = static_cast<uint8_t>(to | q << 4 * (b % 2));
    }
  }
}

void block_q6_k(const float* w, uint8_t* p) {
  float step[16];
  for (int b = 0; b < 16; ++b) step[b] = extreme(w + 16 * b, 16) / -32;
  const float d = put_f16(p + 208, extreme(step, 16) / -128);
  std::fill_n(p, 192, uint8_t{0});
  for (int e = 0; e < 256; ++e) {
    const int s = nearest(over(step[e / 16], d), -128, 127);
    p[192 + e / 16] = static_cast<uint8_t>(s);
    const int q = nearest(over(w[e], d * static_cast<float>(s)), -32, 31) + 32;
    const int n = e / 128, j = e % 128 / 32, l = e % 32;
    uint8_t& low = p[64 * n + l + 32 * (j & 1)];
    low = static_cast<uint8_t>(low | (q & 15) << (j < 2 ? 0 : 4));
    uint8_t& high = p[128 + 32 * n + l];
    high = static_cast<uint8_t>(high | (q >> 4) << 2 * j);
  }
}

struct Encoder {
  Format format;
  void (*block)(const float* w, uint8_t* p);
};
constexpr Encoder kEncoders[] = {
    {Format::q8_0, block_q8_0},
    {Format::q4_0, block_q4_0},
    {Format::q4_k, block_q4_k},
    {Format::q6_k, block_q6_k},
};

const Encoder* encoder_of(Format format) {
  for (const Encoder& encoder : kEncoders) {
    if (encoder.format == format) return &encoder;
  }
  return nullptr;
}

}  // namespace

bool has_ggml_encoder(Format format) { return encoder_of(format) != nullptr; }

EncodedMatrix encode_ggml(Format format, const RowReader& source, const std::string& tensor) {
  const Encoder* encoder = encoder_of(format);
  H3_ASSERT(encoder != nullptr);
  const FormatRow& row = row_of(format);
  if (source.cols % row.block_cols != 0) {
    fail(Code::data, "tensor '%s': rows of %lld do not divide into the blocks of %s", tensor.c_str(),
         static_cast<long long>(source.cols), row.name);
  }
  EncodedMatrix out;
  auto bytes = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(row.data_bytes(source.rows, source.cols)));
  out.matrix.format = format;
  out.matrix.rows = source.rows;
  out.matrix.cols = source.cols;
  out.matrix.data = std::as_bytes(std::span(*bytes));
  out.matrix.keep_alive = bytes;
  std::vector<float> weights(static_cast<size_t>(source.cols)), decoded(weights.size());
  const int64_t block_bytes = row.data_bytes(1, row.block_cols);
  uint8_t* p = bytes->data();
  for (int64_t r = 0; r < source.rows; ++r) {
    source.read(r, 1, weights.data());
    for (int64_t c = 0; c < source.cols; c += row.block_cols, p += block_bytes) encoder->block(&weights[c], p);
    row.decode_row(out.matrix, r, decoded.data());
    for (size_t i = 0; i < weights.size(); ++i) {
      const double off = static_cast<double>(decoded[i]) - weights[i];
      out.error.squares += off * off;
      out.error.reference += static_cast<double>(weights[i]) * weights[i];
      out.error.max_abs = std::max(out.error.max_abs, std::fabs(off));
    }
  }
  return out;
}

}  // namespace h3
