// ComfyUI's quantised layers in safetensors files: values, both forms of declaration, and files that lie.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "apps/parity/codec_vectors.h"
#include "base/error.h"
#include "base/file_map.h"
#include "model/text/weights.h"
#include "store/open.h"
#include "store/values.h"
#include "store/weights.h"

namespace h3 {
namespace {

struct Part {
  std::string name, dtype;
  std::vector<int64_t> dims;
  std::string bytes;
};

Part part(const std::string& name, const char* dtype, std::vector<int64_t> dims, std::span<const std::byte> bytes) {
  return {name, dtype, std::move(dims), std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
}
Part declaration(const std::string& layer, const std::string& json) {
  return {layer + ".comfy_quant", "U8", {static_cast<int64_t>(json.size())}, json};
}
std::string floats(const std::vector<float>& values) {
  std::string out(values.size() * 4, '\0');
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

// The bytes of a safetensors file.
std::string file_of(const std::vector<Part>& parts, const std::string& quantisation = "") {
  Json header = Json::object();
  if (!quantisation.empty()) {
    header.set("__metadata__", Json::object({{"_quantization_metadata", quantisation}}));
  }
  std::string data;
  for (const Part& p : parts) {
    Json shape = Json::array();
    for (const int64_t dim : p.dims) shape.push(dim);
    const uint64_t begin = data.size();
    data += p.bytes;
    header.set(p.name, Json::object({{"dtype", p.dtype},
                                     {"shape", shape},
                                     {"data_offsets", Json::array({Json(begin), Json(uint64_t{data.size()})})}}));
  }
  const std::string text = header.dump();
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[static_cast<size_t>(i)] = static_cast<char>(text.size() >> (8 * i));
  return out + text + data;
}

std::unique_ptr<TensorSource> open(const std::string& bytes) {
  return open_checkpoint("q.safetensors", std::as_bytes(std::span(bytes.data(), bytes.size())));
}

std::vector<CodecVector> vectors(const std::string& name) {
  const std::string path = std::string(H3_SOURCE_DIR) + "/tests/data/codec/" + name + ".json";
  return codec_vectors(Json::parse(read_file(path), path), path);
}

void expect_values(const TensorSource& source, const CodecVector& v, const std::string& what) {
  const TensorInfo* info = source.find("l.weight");
  ASSERT_NE(info, nullptr) << what;
  ASSERT_EQ(source.tensors().size(), 1u) << what << ": the scales are still listed";
  ASSERT_EQ(info->format, v.matrix.format) << what;
  ASSERT_EQ(info->dims, (std::vector<int64_t>{v.matrix.rows, v.matrix.cols})) << what;
  const std::vector<float> found = values_of(*info);
  double top = 0;
  for (const float value : v.values) top = std::max(top, std::fabs(static_cast<double>(value)));
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_LE(std::fabs(static_cast<double>(found[i]) - v.values[i]), v.tolerance * top) << what << " " << i;
  }
}

std::vector<Part> nvfp4_parts(const CodecVector& v) {
  const StoredMatrix& m = v.matrix;
  return {part("l.weight", "U8", {m.rows, m.cols / 2}, m.data),
          part("l.weight_scale", "F8_E4M3", {static_cast<int64_t>(m.scale.size())}, m.scale),
          part("l.weight_scale_2", "F32", {}, m.scale2)};
}

// Vectors whose rows and columns need no padding.
std::vector<CodecVector> whole_nvfp4() {
  std::vector<CodecVector> out;
  for (CodecVector& v : vectors("nvfp4")) {
    if (v.matrix.rows % 16 == 0 && v.matrix.cols % 16 == 0) out.push_back(std::move(v));
  }
  return out;
}

TEST(ComfyQuant, Nvfp4) {
  int cases = 0;
  for (const CodecVector& v : whole_nvfp4()) {
    std::vector<Part> parts = nvfp4_parts(v);
    expect_values(*open(file_of(parts)), v, v.name + " undeclared");
    expect_values(*open(file_of(parts, R"({"format_version":"1.0","layers":{"l":{"format":"nvfp4"}}})")), v, v.name);
    parts.push_back(declaration("l", R"({"format": "nvfp4", "full_precision_matrix_mult": true})"));
    parts.push_back({"l.input_scale", "F32", {}, floats({3})});
    parts[1].dtype = "U8";
    expect_values(*open(file_of(parts)), v, v.name + " declared");
    ++cases;
  }
  EXPECT_GE(cases, 1);
}

// The input is multiplied by s, so the effective columns are, too; s may be f32, f16 or bf16.
TEST(ComfyQuant, Nvfp4Awq) {
  const CodecVector v = whole_nvfp4().at(0);
  const std::vector<float> plain = values_of(*open(file_of(nvfp4_parts(v)))->find("l.weight"));
  const int64_t cols = v.matrix.cols;
  for (const char* dtype : {"F32", "BF16", "F16"}) {
    std::vector<float> factors;
    std::string bytes;
    for (int64_t c = 0; c < cols; ++c) factors.push_back(c % 2 == 0 ? 0.5f : 2.0f);
    for (const float f : factors) {
      const std::string wide = floats({f});
      const uint16_t half = f32_to_f16(f);
      bytes += dtype == std::string("F32")    ? wide
               : dtype == std::string("BF16") ? wide.substr(2)
                                              : std::string{static_cast<char>(half), static_cast<char>(half >> 8)};
    }
    std::vector<Part> parts = nvfp4_parts(v);
    parts.push_back({"l.pre_quant_scale", dtype, {cols}, bytes});
    const std::string file = file_of(parts);
    const auto source = open(file);
    const std::vector<float> found = values_of(*source->find("l.weight"));
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i], plain[i] * factors[i % static_cast<size_t>(cols)]) << dtype;
    }
  }
}

TEST(ComfyQuant, Int8ConvRot) {
  for (const CodecVector& v : vectors("int8_convrot")) {
    const StoredMatrix& m = v.matrix;
    const std::string group = std::to_string(m.rotation);
    std::vector<Part> parts = {part("l.weight", "I8", {m.rows, m.cols}, m.data),
                               part("l.weight_scale", "F32", {m.rows, 1}, m.scale)};
    const std::string top = R"({"format":"int8_tensorwise","convrot":true,"convrot_groupsize":)" + group + "}";
    const std::string inside =
        R"({"format":"int8_tensorwise","params":{"convrot":true,"convrot_groupsize":)" + group + "}}";
    for (const std::string& json : {top, inside}) {
      expect_values(*open(file_of(parts, R"({"layers":{"l":)" + json + "}}")), v, v.name);
      std::vector<Part> declared = parts;
      declared.push_back(declaration("l", json));
      expect_values(*open(file_of(declared)), v, v.name);
    }
    // The file's table wins over the layer's own tensor.
    std::vector<Part> both = parts;
    both.push_back(declaration("l", R"({"format":"int8_tensorwise"})"));
    expect_values(*open(file_of(both, R"({"layers":{"l":)" + top + "}}")), v, v.name + " both");
    both.resize(2);
    both.push_back(declaration("l", R"({"format":"int8_tensorwise","convrot":false})"));
    const std::string unrotated = file_of(both);
    EXPECT_EQ(open(unrotated)->find("l.weight")->rotation, 0);
  }
}

TEST(ComfyQuant, W4a8) {
  for (const CodecVector& v : vectors("w4a8")) {
    const StoredMatrix& m = v.matrix;
    std::vector<Part> parts = {part("l.weight", "I8", {m.rows, m.cols / 2}, m.data),
                               part("l.weight_s_rel", "F8_E4M3", {m.rows, m.cols / 16}, m.scale),
                               part("l.weight_s_channel", "F32", {m.rows}, m.scale2)};
    if (!m.codebook.empty()) parts.push_back(part("l.weight_codebook", "F32", {16}, m.codebook));
    parts.push_back(declaration(
        "l", R"({"format":"asym_w4a8_int8","group_size":16,"convrot_groupsize":)" + std::to_string(m.rotation) + "}"));
    expect_values(*open(file_of(parts)), v, v.name);
  }
}

TEST(ComfyQuant, Fp8Scaled) {
  const std::string codes = "\x38\x40\xb8\x08";  // 1, 2, -1, 2^-6
  const std::vector<float> plain = {1, 2, -1, 0.015625f};
  const struct {
    std::vector<Part> parts;
    float rows[2];
  } cases[] = {
      {{{"l.weight_scale", "F32", {}, floats({3})}}, {3, 3}},
      {{{"l.weight_scale", "F32", {2, 1}, floats({3, 5})}}, {3, 5}},
      {{{"l.weight_scale", "BF16", {2}, std::string("\x40\x40\xa0\x40", 4)}, {"l.input_scale", "F32", {}, floats({9})}},
       {3, 5}},
      {{declaration("l", R"({"format":"float8_e4m3fn"})"), {"l.weight_scale", "F32", {1}, floats({3})}}, {3, 3}},
      {{{"l.scale_weight", "F32", {}, floats({3})},
        {"l.scale_input", "F32", {}, floats({1})},
        {"scaled_fp8", "F8_E4M3", {0}, ""}},
       {3, 3}},
      {{declaration("l", R"({"format":"float8_e4m3fn"})")}, {1, 1}},
  };
  for (const auto& c : cases) {
    std::vector<Part> parts = {{"l.weight", "F8_E4M3", {2, 2}, codes}};
    parts.insert(parts.end(), c.parts.begin(), c.parts.end());
    const std::string file = file_of(parts);
    const auto source = open(file);
    ASSERT_EQ(source->tensors().size(), 1u) << c.parts[0].name;
    const std::vector<float> found = values_of(source->tensors()[0]);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(found[i], plain[i] * c.rows[i / 2]) << c.parts[0].name;
  }
}

TEST(ComfyQuant, FilesThatLieAreRefused) {
  const CodecVector v = whole_nvfp4().at(0);
  const std::vector<Part> nvfp4 = nvfp4_parts(v);
  const Part int8 = {"l.weight", "I8", {2, 4}, std::string(8, '\1')};
  const Part rows = {"l.weight_scale", "F32", {2}, floats({1, 1})};
  const auto with = [](std::vector<Part> parts, std::initializer_list<Part> more) {
    parts.insert(parts.end(), more);
    return parts;
  };
  std::vector<Part> short_scale = nvfp4;
  short_scale[1].dims[0] -= 4;
  short_scale[1].bytes.resize(short_scale[1].bytes.size() - 4);
  const struct {
    std::vector<Part> parts;
    const char* metadata;
    std::vector<const char*> says;
  } cases[] = {
      {{int8, rows}, "", {"'l.weight'", "int8", "whether its rows are rotated"}},
      {{int8, rows, declaration("l", R"({"format":"nvfp4"})")},
       "",
       {"'l.weight'", "declared as 'nvfp4'", "mislabelled"}},
      {with(nvfp4, {declaration("l", R"({"format":"int8_tensorwise"})")}), "", {"declared as 'int8_tensorwise'"}},
      {{int8, rows, declaration("l", R"({"format":"awq_w4a16"})")}, "", {"'awq_w4a16'", "not supported", "nvfp4"}},
      {{int8, rows, declaration("l", R"({"convrot":true})")}, "", {"\"format\""}},
      {{int8, rows, declaration("l", R"({"format":)")}, "", {"'l.comfy_quant'", "invalid JSON"}},
      {{int8, rows, declaration("l", R"({"format":"int8_tensorwise","convrot":true,"convrot_groupsize":8})")},
       "",
       {"'l.weight'", "rotation group of 8"}},
      {{int8, rows, declaration("l", R"({"format":"int8_tensorwise","convrot":true,"convrot_groupsize":"x"})")},
       "",
       {"convrot_groupsize", "\"x\""}},
      {{int8, rows, declaration("l", R"({"format":"int8_tensorwise","convrot":1})")},
       "",
       {"\"convrot\"", "true or false"}},
      {{declaration("l", R"({"format":"nvfp4"})")}, "", {"'l.comfy_quant'", "no tensor 'l.weight'"}},
      {{int8, rows}, R"({"layers":{"k":{"format":"nvfp4"}}})", {"_quantization_metadata", "layer 'k'"}},
      {{int8, rows}, "{", {"_quantization_metadata", "invalid JSON"}},
      {{int8, rows}, "[]", {"_quantization_metadata", "\"layers\""}},
      {{int8, {"l.weight_scale", "F32", {3}, floats({1, 1, 1})}, declaration("l", R"({"format":"int8_tensorwise"})")},
       "",
       {"'l.weight_scale'", "one per row"}},
      {{int8, {"l.weight_scale", "I32", {2}, floats({1, 1})}, declaration("l", R"({"format":"int8_tensorwise"})")},
       "",
       {"'l.weight_scale'", "F32, F16 or BF16"}},
      {short_scale, "", {"'l.weight'", "bytes of scale"}},
      {with(nvfp4, {{"l.pre_quant_scale", "F32", {3}, floats({1, 1, 1})}}), "", {"'l.pre_quant_scale'", "per column"}},
      {{{"l.weight", "F8_E4M3", {4}, "abcd"}, {"l.weight_scale", "F32", {}, floats({1})}},
       "",
       {"'l.weight'", "a matrix"}},
      {{{"l.weight", "I8", {1, 10}, std::string(10, '\1')},
        {"l.weight_s_rel", "F8_E4M3", {1}, "a"},
        {"l.weight_s_channel", "F32", {1}, floats({1})}},
       "",
       {"'l.weight'", "20", "groups of 16"}},
      {{{"l.weight", "I8", {1, 8}, std::string(8, '\1')}, {"l.weight_s_rel", "F8_E4M3", {1}, "a"}},
       "",
       {"'l.weight'", "weight_s_channel"}},
  };
  for (const auto& c : cases) {
    try {
      open(file_of(c.parts, c.metadata));
      ADD_FAILURE() << "opened; expected " << c.says[0];
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("q.safetensors"), text.npos) << text;
      for (const char* say : c.says) EXPECT_NE(text.find(say), text.npos) << text << " lacks " << say;
    }
  }
}

// A tensor in memory with the planes of its format.
class Layers final : public TensorSource {
 public:
  // Every matrix of `count` layers in NVFP4, with pre_quant_scale where AWQ keeps it.
  explicit Layers(int count) {
    for (int l = 0; l < count; ++l) {
      for (const auto& row : text::kLayer) {
        TensorInfo info;
        info.name = "model.layers." + std::to_string(l) + "." + row.name;
        info.file = "te.safetensors";
        info.format = info.name.ends_with("proj.weight") ? Format::nvfp4 : Format::bf16;
        if (row.field == &text::LayerTensors::out || row.field == &text::LayerTensors::down) info.pre_scale = scale_;
        tensors_.push_back(info);
      }
    }
    index_tensors();
  }
  TensorInfo& at(const std::string& name) {
    return *std::find_if(tensors_.begin(), tensors_.end(), [&](const TensorInfo& t) { return t.name == name; });
  }
  // What binding reports of these layers; empty when they fit together.
  static std::string problem(std::shared_ptr<Layers> source) {
    Component component;
    component.role = Role::conditioner;
    component.origin = "te.safetensors";
    component.source = source;
    WeightBinder binder(component);
    std::vector<text::LayerTensors> layers(2);
    for (size_t l = 0; l < layers.size(); ++l) {
      for (const auto& row : text::kLayer) {
        layers[l].*row.field = binder.require("model.layers." + std::to_string(l) + "." + row.name, {});
      }
    }
    text::check_awq(binder, layers);
    try {
      binder.finish();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  const std::vector<std::string>& files() const override { return files_; }
  std::string id() const override { return "layers"; }

 private:
  const std::vector<std::byte> scale_ = std::vector<std::byte>(8);
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::string> files_;
};

TEST(ComfyQuant, NormsOfAwqWithAnotherEncodersWeights) {
  EXPECT_EQ(Layers::problem(std::make_shared<Layers>(2)), "");
  auto mixed = std::make_shared<Layers>(2);
  mixed->at("model.layers.1.self_attn.k_proj.weight").format = Format::bf16;
  const std::string text = Layers::problem(mixed);
  for (const char* part : {"te.safetensors", "'model.layers.1.self_attn.k_proj.weight'", "offset 0", "bf16",
                           "norms of an AWQ encoder with another encoder's weights"}) {
    EXPECT_NE(text.find(part), text.npos) << text;
  }
  auto unscaled = std::make_shared<Layers>(2);
  unscaled->at("model.layers.0.mlp.down_proj.weight").pre_scale = {};
  EXPECT_NE(Layers::problem(unscaled).find("without a pre_quant_scale"), std::string::npos);
}

}  // namespace
}  // namespace h3
