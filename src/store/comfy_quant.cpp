#include "store/comfy_quant.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "codec/nvfp4.h"
#include "codec/packed.h"

namespace h3 {
namespace {

using Long = long long;

constexpr const char* kMetadataKey = "_quantization_metadata";
constexpr const char* kDeclaration = ".comfy_quant";
constexpr const char* kLegacyMarker = "scaled_fp8";
constexpr int kDefaultRotation = 256;
constexpr int64_t kW4a8Block = 16;

// What a quantised layer can be.
enum class Kind : uint8_t { fp8, int8, nvfp4, w4a8 };

struct FormatName {
  const char* name;
  Kind kind;
};
constexpr FormatName kFormats[] = {
    {"float8_e4m3fn", Kind::fp8}, {"float8_e5m2", Kind::fp8},     {"int8_tensorwise", Kind::int8},
    {"nvfp4", Kind::nvfp4},       {"asym_w4a8_int8", Kind::w4a8},
};

// Tensors beside P.weight. Older files call the scales by the second name.
constexpr const char* kParts[] = {
    ".comfy_quant",      ".weight_scale",    ".weight_scale_2",    ".input_scale",  ".pre_quant_scale", ".weight_s_rel",
    ".weight_s_channel", ".weight_codebook", ".weight_correction", ".scale_weight", ".scale_input",
};

class Folder {
 public:
  Folder(const std::string& path, std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata,
         std::vector<std::vector<std::byte>>& owned)
      : path_(path), tensors_(tensors), metadata_(metadata), owned_(owned) {
    for (size_t i = 0; i < tensors.size(); ++i) places_.emplace(tensors[i].name, i);
  }

  void run() {
    read_declarations();
    std::vector<std::string> layers;
    for (const TensorInfo& info : tensors_) {
      for (const char* part : kParts) {
        if (info.name.ends_with(part))
          layers.push_back(info.name.substr(0, info.name.size() - std::string_view(part).size()));
      }
    }
    for (const auto& [layer, json] : declared_) layers.push_back(layer);
    std::sort(layers.begin(), layers.end());
    layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
    for (const std::string& layer : layers) fold(layer);
    drop_marker();
    tensors_.erase(std::remove_if(tensors_.begin(), tensors_.end(), [](const TensorInfo& t) { return t.name.empty(); }),
                   tensors_.end());
  }

 private:
  [[noreturn]] void bad(const TensorInfo& info, const std::string& problem) const {
    fail(Code::data, "%s: tensor '%s' %s %s at offset %llu: %s", info.file.c_str(), info.name.c_str(),
         shape_text(info.dims).c_str(), row_of(info.format).name, static_cast<unsigned long long>(info.offset),
         problem.c_str());
  }

  TensorInfo* find(const std::string& name) {
    const auto found = places_.find(name);
    return found == places_.end() ? nullptr : &tensors_[found->second];
  }

  void read_declarations() {
    for (const TensorInfo& info : tensors_) {
      if (!info.name.ends_with(kDeclaration)) continue;
      if (info.format != Format::u8 || info.dims.size() != 1) bad(info, "a declaration must be a vector of bytes");
      const std::string_view text(reinterpret_cast<const char*>(info.data.data()), info.data.size());
      const std::string where = strf("%s: tensor '%s' at offset %llu", info.file.c_str(), info.name.c_str(),
                                     static_cast<unsigned long long>(info.offset));
      declared_[info.name.substr(0, info.name.size() - std::string_view(kDeclaration).size())] =
          Json::parse(text, where);
    }
    const auto found = metadata_.find(kMetadataKey);
    if (found == metadata_.end()) return;
    const std::string where = path_ + " (" + kMetadataKey + ")";
    const Json table = Json::parse(found->second, where);
    const Json* layers = table.find("layers");
    if (layers == nullptr || !layers->is_object()) fail(Code::data, "%s: needs an object \"layers\"", where.c_str());
    for (const auto& [layer, json] : layers->members()) {
      if (find(layer + ".weight") == nullptr) {
        fail(Code::data, "%s: declares layer '%s', but the file has no tensor '%s.weight'", where.c_str(),
             layer.c_str(), layer.c_str());
      }
      declared_[layer] = json;
    }
  }

  // The kind a declaration names; nothing without one.
  std::optional<Kind> declared_kind(const TensorInfo& weight, const std::string& layer) const {
    const auto found = declared_.find(layer);
    if (found == declared_.end()) return std::nullopt;
    const Json* format = found->second.find("format");
    if (format == nullptr || !format->is_string()) bad(weight, "its quantisation declares no \"format\"");
    std::string allowed;
    for (const FormatName& row : kFormats) {
      if (format->as_string() == row.name) return row.kind;
      allowed += (allowed.empty() ? "" : ", ") + std::string(row.name);
    }
    bad(weight, "its quantisation declares the format '" + format->as_string() +
                    "', which is not supported; allowed are " + allowed);
  }

  // The kind that the tensors show; nothing for a plain weight.
  std::optional<Kind> shown_kind(const TensorInfo& weight, const std::string& layer) {
    const bool bytes = weight.format == Format::i8 || weight.format == Format::u8;
    if (bytes && find(layer + ".weight_s_rel") != nullptr) return Kind::w4a8;
    if (weight.format == Format::u8 && find(layer + ".weight_scale_2") != nullptr) return Kind::nvfp4;
    if (weight.format == Format::i8 && find(layer + ".weight_scale") != nullptr) return Kind::int8;
    const bool fp8 = weight.format == Format::f8_e4m3 || weight.format == Format::f8_e5m2;
    if (fp8 && (scale_of(layer) != nullptr || declared_.count(layer) != 0)) return Kind::fp8;
    return std::nullopt;
  }

  TensorInfo* scale_of(const std::string& layer) {
    TensorInfo* scale = find(layer + ".weight_scale");
    return scale != nullptr ? scale : find(layer + ".scale_weight");
  }

  void fold(const std::string& layer) {
    TensorInfo* weight = find(layer + ".weight");
    if (weight == nullptr) {
      if (TensorInfo* declaration = find(layer + kDeclaration)) {
        bad(*declaration, strf("declares a quantised layer, but the file has no tensor '%s.weight'", layer.c_str()));
      }
      return;  // whoever binds the tensors says that they are not known
    }
    const std::optional<Kind> declared = declared_kind(*weight, layer);
    const std::optional<Kind> shown = shown_kind(*weight, layer);
    if (declared && declared != shown) {
      bad(*weight, strf("its quantisation is declared as '%s', but the tensors beside it are not of that format; the "
                        "file is damaged or mislabelled",
                        declared_.at(layer).at("format").as_string().c_str()));
    }
    if (!shown) return;
    if (weight->dims.size() != 2) bad(*weight, "a quantised layer must be a matrix");
    switch (*shown) {
      case Kind::fp8: fold_fp8(*weight, layer); break;
      case Kind::int8: fold_int8(*weight, layer); break;
      case Kind::nvfp4: fold_nvfp4(*weight, layer); break;
      case Kind::w4a8: fold_w4a8(*weight, layer); break;
    }
    if (const TensorInfo* before = find(layer + ".pre_quant_scale")) {
      weight->pre_scale = floats(*before, {weight->dims[1]}, "one factor per column");
    }
    stored_matrix(*weight);  // checks the planes
    for (const char* part : kParts) {
      if (TensorInfo* info = find(layer + part)) info->name.clear();
    }
  }

  void fold_fp8(TensorInfo& weight, const std::string& layer) {
    const TensorInfo* scale = scale_of(layer);
    if (scale != nullptr) weight.scale = floats(*scale, {1, weight.dims[0]}, "one scale, or one per row");
  }

  void fold_int8(TensorInfo& weight, const std::string& layer) {
    if (declared_.find(layer) == declared_.end()) {
      bad(weight,
          "int8 with a weight_scale and no declaration (comfy_quant): nothing says whether its rows are "
          "rotated");
    }
    weight.format = Format::int8_convrot;
    weight.scale = floats(*scale_of(layer), {1, weight.dims[0]}, "one scale, or one per row");
    const Json* rotated = option(layer, "convrot");
    if (rotated != nullptr && !rotated->is_bool()) bad(weight, "\"convrot\" of its declaration must be true or false");
    weight.rotation = rotated != nullptr && rotated->as_bool() ? rotation(weight, layer) : 0;
  }

  void fold_nvfp4(TensorInfo& weight, const std::string& layer) {
    TensorInfo* scale = find(layer + ".weight_scale");
    if (scale == nullptr) bad(weight, "NVFP4 without a weight_scale");
    if (scale->format != Format::f8_e4m3 && scale->format != Format::u8) bad(*scale, "NVFP4 scales must be F8_E4M3");
    weight.format = Format::nvfp4;
    weight.dims[1] *= 2;  // two codes a byte
    weight.scale = scale->data;
    weight.scale2 = floats(*find(layer + ".weight_scale_2"), {1}, "one scale of the tensor");
  }

  void fold_w4a8(TensorInfo& weight, const std::string& layer) {
    if (const TensorInfo* correction = find(layer + ".weight_correction")) bad(*correction, "is not supported");
    const TensorInfo& scale = *find(layer + ".weight_s_rel");
    const TensorInfo* rows = find(layer + ".weight_s_channel");
    if (rows == nullptr) bad(weight, "W4A8 without a weight_s_channel");
    if (scale.format != Format::f8_e4m3 && scale.format != Format::u8) bad(scale, "W4A8 scales must be F8_E4M3");
    const Json* block = option(layer, "group_size");
    if (block != nullptr && !(block->is_integer() && block->as_int() == kW4a8Block)) {
      bad(weight, strf("its declaration asks for groups of %s; W4A8 is read with groups of %lld", block->dump().c_str(),
                       static_cast<Long>(kW4a8Block)));
    }
    weight.format = Format::w4a8;
    weight.dims[1] *= 2;
    if (weight.dims[1] % kW4a8Block != 0) {
      bad(weight, strf("rows of %lld weights do not divide into groups of %lld", static_cast<Long>(weight.dims[1]),
                       static_cast<Long>(kW4a8Block)));
    }
    weight.scale = scale.data;
    weight.scale2 = floats(*rows, {weight.dims[0]}, "one scale per row");
    if (const TensorInfo* codebook = find(layer + ".weight_codebook")) {
      weight.codebook = floats(*codebook, {16}, "16 levels");
    }
    weight.rotation = rotation(weight, layer);
  }

  // A setting of the declaration, at its top or among its "params".
  const Json* option(const std::string& layer, const char* key) const {
    const auto found = declared_.find(layer);
    if (found == declared_.end()) return nullptr;
    if (const Json* value = found->second.find(key)) return value;
    const Json* params = found->second.find("params");
    return params == nullptr ? nullptr : params->find(key);
  }

  int32_t rotation(const TensorInfo& weight, const std::string& layer) const {
    const Json* group = option(layer, "convrot_groupsize");
    if (group == nullptr) return kDefaultRotation;
    if (!group->is_integer() || group->as_int() < 4 || group->as_int() > 1 << 20) {
      bad(weight, "\"convrot_groupsize\" of its declaration is " + group->dump() + "; allowed are powers of 4");
    }
    return static_cast<int32_t>(group->as_int());
  }

  // The values of a scale tensor as f32; its length must be one of `lengths`.
  std::span<const std::byte> floats(const TensorInfo& info, std::initializer_list<int64_t> lengths, const char* what) {
    int64_t count = 1;
    for (const int64_t dim : info.dims) count *= dim;
    if (std::find(lengths.begin(), lengths.end(), count) == lengths.end()) bad(info, strf("must hold %s", what));
    if (info.format == Format::f32) return info.data;
    if (info.format != Format::f16 && info.format != Format::bf16) bad(info, "scales must be F32, F16 or BF16");
    StoredMatrix matrix;
    matrix.format = info.format;
    matrix.rows = 1;
    matrix.cols = count;
    matrix.data = info.data;
    std::vector<float> values(static_cast<size_t>(count));
    row_of(info.format).decode_row(matrix, 0, values.data());
    std::vector<std::byte>& bytes = owned_.emplace_back(values.size() * 4);
    for (size_t i = 0; i < values.size(); ++i) store_f32(reinterpret_cast<uint8_t*>(&bytes[4 * i]), values[i]);
    return bytes;
  }

  // Marks files that call their scales scale_weight; says nothing that the layers do not.
  void drop_marker() {
    for (TensorInfo& info : tensors_) {
      const bool whole = info.name == kLegacyMarker || info.name.ends_with(std::string(".") + kLegacyMarker);
      if (whole && (info.format == Format::f8_e4m3 || info.format == Format::f8_e5m2)) info.name.clear();
    }
  }

  const std::string& path_;
  std::vector<TensorInfo>& tensors_;
  const std::map<std::string, std::string>& metadata_;
  std::vector<std::vector<std::byte>>& owned_;
  std::map<std::string, size_t> places_;  // by the names in the file
  std::map<std::string, Json> declared_;  // by layer
};

}  // namespace

void fold_quantised_layers(const std::string& path, std::vector<TensorInfo>& tensors,
                           const std::map<std::string, std::string>& metadata,
                           std::vector<std::vector<std::byte>>& owned) {
  Folder(path, tensors, metadata, owned).run();
}

std::vector<SafetensorsEntry> nvfp4_entries(const std::string& layer, int64_t rows, int64_t cols) {
  const int64_t scale_rows = round_up_to(rows, 128);
  return {{layer + ".weight", Format::u8, {rows, nvfp4_row_bytes(cols)}},
          {layer + ".weight_scale", Format::f8_e4m3, {scale_rows, nvfp4_scale_bytes(rows, cols) / scale_rows}},
          {layer + ".weight_scale_2", Format::f32, {}},
          {layer + kDeclaration, Format::u8, {static_cast<int64_t>(kNvfp4Declaration.size())}}};
}

}  // namespace h3
