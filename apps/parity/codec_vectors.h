// The codec cases of q4tp_vectors.json and nvfp4_vectors.json, and of the smaller files in tests/data/codec, as packed
// matrices.
#pragma once

#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "quant/encode.h"

namespace h3 {

inline std::vector<std::byte> hex_bytes(const std::string& text) {
  const auto digit = [&](char c) {
    const std::string digits = "0123456789abcdef";
    const size_t value = digits.find(c);
    if (value == std::string::npos) fail(Code::data, "'%c' is not a hex digit", c);
    return value;
  };
  std::vector<std::byte> out;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    out.push_back(static_cast<std::byte>(digit(text[i]) << 4 | digit(text[i + 1])));
  }
  return out;
}

inline std::vector<float> hex_floats(const std::string& text) {
  const std::vector<std::byte> bytes = hex_bytes(text);
  std::vector<float> out;
  for (size_t i = 0; i + 3 < bytes.size(); i += 4) {
    out.push_back(load_f32(reinterpret_cast<const uint8_t*>(bytes.data()) + i));
  }
  return out;
}

inline Format format_named(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(Format::f8_e8m0); ++i) {
    if (row_of(static_cast<Format>(i)).name == name) return static_cast<Format>(i);
  }
  fail(Code::data, "no format is called '%s'", name.c_str());
}

struct CodecVector {
  std::string name;
  StoredMatrix matrix;
  std::vector<float> values;  // [rows, cols]: what decoding must give
  double tolerance = 0;       // 0: bit for bit; else of the largest value
  std::vector<float> input;   // [rows, cols], or empty: decode only
  EncodeOptions options;
};

// Owns copies of the planes named.
class VectorBuilder {
 public:
  VectorBuilder(std::string name, Format format, int64_t rows, int64_t cols) {
    out_.name = std::move(name);
    out_.matrix.format = format;
    out_.matrix.rows = rows;
    out_.matrix.cols = cols;
  }
  VectorBuilder& plane(std::span<const std::byte> StoredMatrix::*member, const Json* hex) {
    if (hex == nullptr) return *this;
    planes_->push_back(hex_bytes(hex->as_string()));
    out_.matrix.*member = planes_->back();
    return *this;
  }
  CodecVector take(const Json& json, const char* values, const char* input) {
    out_.matrix.keep_alive = planes_;
    out_.values = hex_floats(json.at(values).as_string());
    if (const Json* given = json.find(input)) out_.input = hex_floats(given->as_string());
    return std::move(out_);
  }

 private:
  CodecVector out_;
  std::shared_ptr<std::vector<std::vector<std::byte>>> planes_ =
      std::make_shared<std::vector<std::vector<std::byte>>>();
};

// A row of "cases" of q4tp_vectors.json.
inline CodecVector cmf_vector(const Json& c) {
  VectorBuilder builder(c.at("name").as_string(), format_named(c.at("format").as_string()), c.at("rows").as_int(),
                        c.at("cols").as_int());
  builder.plane(&StoredMatrix::data, &c.at("bytes"));
  CodecVector out = builder.take(c, "dequant_f32_le", "input_f32_le");
  if (const Json* search = c.find("rung_search")) out.options.search = search->as_bool();
  return out;
}

// A row of "nvfp4_cases". A global scale that does not follow from the input was given by the caller.
inline CodecVector nvfp4_vector(const Json& c) {
  VectorBuilder builder(c.at("name").as_string(), Format::nvfp4, c.at("rows").as_int(), c.at("cols").as_int());
  builder.plane(&StoredMatrix::data, &c.at("weight_u8"))
      .plane(&StoredMatrix::scale, &c.at("weight_scale_swizzled_e4m3"))
      .plane(&StoredMatrix::scale2, &c.at("weight_scale_2_f32_le"));
  CodecVector out = builder.take(c, "dequant_f32_le", "input_f32_le");
  out.options.global = hex_floats(c.at("weight_scale_2_f32_le").as_string()).at(0);
  float top = 0;
  for (const float v : out.input) top = std::max(top, std::fabs(v));
  if (std::bit_cast<uint32_t>(top / 2688) == std::bit_cast<uint32_t>(out.options.global)) out.options.global = 0;
  return out;
}

constexpr double kRotatedTolerance = 2e-6;  // of the largest value: sums whose order the reference leaves open

inline CodecVector convrot_vector(const Json& c) {
  VectorBuilder builder(c.at("name").as_string(), Format::int8_convrot, c.at("rows").as_int(), c.at("cols").as_int());
  builder.plane(&StoredMatrix::data, &c.at("weight_i8")).plane(&StoredMatrix::scale, &c.at("weight_scale_f32_le"));
  CodecVector out = builder.take(c, "dequant_f32_le", "input_f32_le");
  out.matrix.rotation = out.options.rotation = static_cast<int>(c.at("convrot_groupsize").as_int());
  out.tolerance = kRotatedTolerance;
  return out;
}

inline CodecVector w4a8_vector(const Json& c) {
  VectorBuilder builder(c.at("name").as_string(), Format::w4a8, c.at("rows").as_int(), c.at("cols").as_int());
  builder.plane(&StoredMatrix::data, &c.at("weight_u4"))
      .plane(&StoredMatrix::scale, &c.at("weight_s_rel_e4m3"))
      .plane(&StoredMatrix::scale2, &c.at("weight_s_channel_f32_le"))
      .plane(&StoredMatrix::codebook, c.find("weight_codebook_f32_le"));
  CodecVector out = builder.take(c, "dequant_f32_le", "input_f32_le");
  out.matrix.rotation = static_cast<int>(c.at("convrot_groupsize").as_int());
  out.tolerance = kRotatedTolerance;
  return out;
}

// A row of "gguf_block_cases": some blocks, here one row.
inline CodecVector gguf_vector(const Json& c) {
  const std::string name = c.at("name").as_string();
  const int64_t cols = static_cast<int64_t>(c.at("dequant_f32_le").as_string().size()) / 8;
  VectorBuilder builder(name, format_named(name), 1, cols);
  builder.plane(&StoredMatrix::data, &c.at("bytes"));
  return builder.take(c, "dequant_f32_le", "");
}

struct VectorTable {
  const char* key;
  CodecVector (*read)(const Json& row);
};
inline constexpr VectorTable kVectorTables[] = {{"cases", cmf_vector},
                                                {"nvfp4_cases", nvfp4_vector},
                                                {"int8_convrot_cases", convrot_vector},
                                                {"w4a8_cases", w4a8_vector},
                                                {"gguf_block_cases", gguf_vector}};

// Every table of the file. Finding none is an error.
inline std::vector<CodecVector> codec_vectors(const Json& file, const std::string& name) {
  std::vector<CodecVector> out;
  for (const VectorTable& table : kVectorTables) {
    const Json* rows = file.find(table.key);
    if (rows == nullptr) continue;
    for (const Json& row : rows->items()) {
      out.push_back(table.read(row));
      check_matrix(out.back().matrix, out.back().name);
    }
  }
  if (out.empty()) fail(Code::data, "%s holds no codec case", name.c_str());
  return out;
}

}  // namespace h3
