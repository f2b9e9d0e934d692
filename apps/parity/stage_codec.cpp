// Storage formats against byte vectors made independently: decoding, encoding, and the arithmetic around them. All of
// it is bit for bit except sums that rotate rows back.
#include "apps/parity/codec_vectors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "apps/parity/suite.h"
#include "base/hash.h"
#include "codec/rotation.h"
#include "quant/cmf_dot.h"
#include "quant/codecs.h"

namespace h3 {
namespace {

uint32_t hex_u32(const Json& text) {
  return static_cast<uint32_t>(std::strtoul(text.as_string().c_str(), nullptr, 16));
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

bool same_plane(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

void judge_values(Suite& suite, const std::string& name, const std::vector<float>& got, const std::vector<float>& want,
                  double tolerance) {
  if (tolerance == 0) {
    suite.exact(name, same_bits(got, want), "bits differ");
    return;
  }
  double top = 0;
  for (const float v : want) top = std::max(top, static_cast<double>(std::fabs(v)));
  suite.check(name, got, want, {.max_abs = tolerance * top});
}

void run_vector(Suite& suite, const CodecVector& v) {
  const StoredMatrix& m = v.matrix;
  std::vector<float> decoded(static_cast<size_t>(m.rows * m.cols));
  for (int64_t r = 0; r < m.rows; ++r) row_of(m.format).decode_row(m, r, &decoded[r * m.cols]);
  judge_values(suite, v.name + ".decode", decoded, v.values, v.tolerance);
  if (v.input.empty()) return;
  const RowReader reader{m.rows, m.cols, [&](int64_t first, int64_t count, float* out) {
                           std::copy_n(v.input.data() + first * m.cols, count * m.cols, out);
                         }};
  const EncodedMatrix made = encode_matrix(m.format, reader, v.name, suite.ops().context().pool, v.options);
  suite.exact(v.name + ".encode", same_plane(made.matrix.data, m.data), "bytes differ");
  if (!m.scale.empty()) suite.exact(v.name + ".encode.scale", same_plane(made.matrix.scale, m.scale), "bytes differ");
  if (!m.scale2.empty())
    suite.exact(v.name + ".encode.scale2", same_plane(made.matrix.scale2, m.scale2), "bytes differ");
}

// ---- the CMF file ----

void run_activation(Suite& suite, const Json& c) {
  const std::string name = c.at("name").as_string();
  VectorBuilder builder(name, format_named(c.at("format").as_string()), c.at("rows").as_int(), c.at("cols").as_int());
  builder.plane(&StoredMatrix::data, &c.at("bytes"));
  const CodecVector vector = builder.take(c, "y_exact_f32_le", "x_f32_le");
  check_matrix(vector.matrix, name);
  const CmfActivation a = cmf_quantise(vector.input);
  suite.exact(name + ".x", same_plane(std::as_bytes(std::span(a.q)), hex_bytes(c.at("xq_i8").as_string())));
  suite.exact(name + ".scale", same_bits({a.scale}, hex_floats(c.at("sx_f32_le").as_string())));
  std::vector<int64_t> outliers;
  for (const Json& column : c.at("outlier_columns").items()) outliers.push_back(column.as_int());
  suite.exact(name + ".outliers", a.outliers == outliers);
  suite.exact(name + ".f32", same_bits(cmf_dot_f32(vector.matrix, vector.input), vector.values));
  suite.exact(name + ".int8",
              same_bits(cmf_dot_int8(vector.matrix, vector.input), hex_floats(c.at("y_int8_f32_le").as_string())));
}

void run_functions(Suite& suite, const Json& json) {
  if (const Json* rows = json.find("f16_rounding")) {
    bool cmf = true, ieee = true;
    for (const Json& row : rows->items()) {
      const float value = f32_from_bits(hex_u32(row.at("f32_bits")));
      cmf = cmf && f32_to_f16_cmf(value) == hex_u32(row.at("cmf_f16"));
      ieee = ieee && f32_to_f16(value) == hex_u32(row.at("ieee_rne_f16"));
    }
    suite.exact("f16_rounding.cmf", cmf);
    suite.exact("f16_rounding.ieee", ieee);
  }
  if (const Json* exceptions = json.find("libm_exceptions")) {
    bool exp2 = true, log2 = true;
    for (const Json& row : exceptions->at("exp2f").items()) {
      exp2 = exp2 &&
             f32_bits(exp2_of_half(static_cast<uint16_t>(hex_u32(row.at(size_t{0}))))) == hex_u32(row.at(size_t{1}));
    }
    for (const Json& row : exceptions->at("log2f").items()) {
      log2 = log2 &&
             f32_bits(log2_of_half(static_cast<uint16_t>(hex_u32(row.at(size_t{0}))))) == hex_u32(row.at(size_t{1}));
    }
    suite.exact("exp2_of_half", exp2);
    suite.exact("log2_of_half", log2);
  }
  if (const Json* rows = json.find("hash64")) {
    bool equal = true;
    for (const Json& row : rows->items()) {
      equal = equal && hex64(hash64(hex_bytes(row.at("bytes").as_string()))) == row.at("hash64").as_string();
    }
    suite.exact("hash64", equal);
  }
}

// ---- the ComfyUI file ----

// The reference decodes to bf16 where that is the layer's type: the global scale and each product round.
void run_nvfp4_bf16(Suite& suite, const Json& c) {
  const CodecVector v = nvfp4_vector(c);
  const PackedRows m = packed_rows(v.matrix);
  const float global = bf16_to_f32(f32_to_bf16(load_f32(m.scale2)));
  std::vector<float> got;
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t k = 0; k < m.cols; ++k) {
      const uint8_t byte = m.data[r * nvfp4_row_bytes(m.cols) + k / 2];
      const float block = e4m3_to_f32(m.scale[nvfp4_scale_offset(r, k / 16, m.cols)]);
      const float scale = bf16_to_f32(f32_to_bf16(global * block));
      got.push_back(bf16_to_f32(f32_to_bf16(e2m1_to_f32(k % 2 == 0 ? byte >> 4 : byte & 15) * scale)));
    }
  }
  suite.exact(v.name + ".decode_bf16", same_bits(got, hex_floats(c.at("dequant_bf16_as_f32_le").as_string())));
}

// y = x W^T with rotated int8 activations; a whole number of rows of x is given.
void run_convrot_linear(Suite& suite, const Json& c) {
  const CodecVector v = convrot_vector(c);
  const PackedRows m = packed_rows(v.matrix);
  const std::vector<float> given = hex_floats(c.at("x_f32_le").as_string());
  std::vector<float> x = given, scales, y;
  std::vector<int8_t> q;
  for (size_t first = 0; first + static_cast<size_t>(m.cols) <= x.size(); first += static_cast<size_t>(m.cols)) {
    float* row = &x[first];
    scales.push_back(int8_convrot_row(row, m.cols, m.rotation));
    const size_t start = q.size();
    for (int64_t i = 0; i < m.cols; ++i) q.push_back(static_cast<int8_t>(row[i]));
    for (int64_t o = 0; o < m.rows; ++o) {
      int32_t sum = 0;
      for (int64_t i = 0; i < m.cols; ++i) sum += q[start + i] * static_cast<int8_t>(m.data[o * m.cols + i]);
      y.push_back(static_cast<float>(sum) * (scales.back() * row_scale(m, o)));
    }
  }
  suite.exact(v.name + ".x", same_plane(std::as_bytes(std::span(q)), hex_bytes(c.at("x_rotated_i8").as_string())));
  suite.exact(v.name + ".x.scale", same_bits(scales, hex_floats(c.at("x_scale_f32_le").as_string())));
  suite.exact(v.name + ".y", same_bits(y, hex_floats(c.at("y_f32_le").as_string())));
  // A back end that multiplies such codes as they are.
  LinearSpec spec;
  spec.label = v.name;
  spec.weight.append(v.matrix, 0, m.rows);
  spec.compute = Compute::int8;
  const std::unique_ptr<Linear> linear = suite.ops().make_linear(std::move(spec));
  if (linear->rotation == 0) return;
  const auto rows = static_cast<int64_t>(scales.size());
  const Tensor in = upload_f32(suite.ops().device(), given.data(), {rows, m.cols}, DType::f32, "rows");
  const Tensor out(suite.ops().device(), DType::f32, {rows, m.rows}, "products");
  suite.ops().linear(*linear, in, out);
  suite.check(v.name + ".y.linear", download_f32(out), y, {.rel_l2 = 1e-6});  // the order of the two scales
}

void run_w4a8_grid(Suite& suite, const Json& c) {
  const CodecVector v = w4a8_vector(c);
  const PackedRows m = packed_rows(v.matrix);
  std::vector<int8_t> grid;
  for (int64_t i = 0; i < m.rows * m.cols; ++i) {
    const int code = m.data[i / 2] >> (4 * (i % 2)) & 15;
    grid.push_back(static_cast<int8_t>(w4a8_grid(m, code, e4m3_to_f32(m.scale[i / 16]))));
  }
  suite.exact(v.name + ".grid", same_plane(std::as_bytes(std::span(grid)), hex_bytes(c.at("int8_grid").as_string())));
}

void run_scalars(Suite& suite, const Json& json) {
  if (const Json* values = json.find("e2m1_values")) {
    bool equal = values->size() == 16;
    for (int code = 0; equal && code < 16; ++code) {
      const float want = static_cast<float>(values->at(static_cast<size_t>(code)).as_double());
      equal = f32_bits(e2m1_to_f32(code)) == f32_bits(want);
    }
    suite.exact("e2m1", equal);
  }
  if (const Json* values = json.find("e4m3_values_f32_le")) {
    bool equal = values->size() >= 127, encodes = true;
    for (size_t code = 0; equal && code < values->size(); ++code) {
      const float got = e4m3_to_f32(static_cast<uint8_t>(code));
      if (values->at(code).as_string() == "nan") {
        equal = std::isnan(got);
        continue;
      }
      const float want = hex_floats(values->at(code).as_string()).at(0);
      equal = f32_bits(got) == f32_bits(want);
      encodes = encodes && f32_to_e4m3(want) == code;
    }
    suite.exact("e4m3.decode", equal);
    suite.exact("e4m3.encode", encodes);
  }
  if (const Json* swizzle = json.find("scale_swizzle")) {
    bool equal = true;
    for (const Json& e : swizzle->at("entries").items()) {  // a plane of 8 blocks: 128 columns
      equal = equal &&
              nvfp4_scale_offset(e.at(size_t{0}).as_int(), e.at(size_t{1}).as_int(), 128) == e.at(size_t{2}).as_int();
    }
    suite.exact("scale_swizzle", equal);
  }
}

void for_rows(const Json& json, const char* key, void (*run)(Suite&, const Json&), Suite& suite) {
  if (const Json* rows = json.find(key)) {
    for (const Json& row : rows->items()) run(suite, row);
  }
}

}  // namespace

void run_codec(Suite& suite) {
  for (const char* name : {"q4tp_vectors.json", "nvfp4_vectors.json"}) {
    if (!suite.exists(name)) continue;
    const Json json = suite.json(name);
    for (const CodecVector& vector : codec_vectors(json, name)) run_vector(suite, vector);
    for_rows(json, "activation_cases", run_activation, suite);
    for_rows(json, "nvfp4_cases", run_nvfp4_bf16, suite);
    for_rows(json, "int8_convrot_cases", run_convrot_linear, suite);
    for_rows(json, "w4a8_cases", run_w4a8_grid, suite);
    run_functions(suite, json);
    run_scalars(suite, json);
  }
}

}  // namespace h3
