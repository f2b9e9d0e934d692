#include "store/cmf_source.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace h3 {
namespace {

// Which names belong to which component (spec formats A.12). Earlier rows win: te.proj. lies inside te.
struct PartRow {
  Role role;
  std::string_view roots[2];
  std::string_view prefix;
};
constexpr PartRow kParts[] = {
    {Role::clip_proj, {"te.proj.", ""}, "te.proj."}, {Role::dit, {"dit.", ""}, "dit."},
    {Role::conditioner, {"te.", "vis."}, ""},        {Role::video_vae, {"vvae.", ""}, "vvae."},
    {Role::audio_vae, {"avae.", ""}, "avae."},
};
constexpr std::string_view kConfigSuffix = "config_json";

bool belongs(const PartRow& row, std::string_view name) {
  return name.starts_with(row.roots[0]) || (!row.roots[1].empty() && name.starts_with(row.roots[1]));
}

class CmfSource final : public TensorSource {
 public:
  CmfSource(std::shared_ptr<const CmfFile> file, Role role, std::vector<TensorInfo> tensors)
      : file_(std::move(file)), tensors_(std::move(tensors)), files_{file_->path()} {
    if (role == Role::conditioner) tokenizer_ = cmf_tokenizer(*file_);
    index_tensors();
  }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  const std::vector<std::string>& files() const override { return files_; }
  std::string id() const override { return file_->id(); }
  const char* container() const override { return "CMF"; }
  const TokenizerFiles* tokenizer() const override { return tokenizer_ ? &*tokenizer_ : nullptr; }

 private:
  std::shared_ptr<const CmfFile> file_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::string> files_;
  std::optional<TokenizerFiles> tokenizer_;
};

TensorInfo info_of(const CmfFile& file, const CmfTensor& tensor) {
  const CmfDtype& dtype = cmf_dtypes()[tensor.dtype];
  if (!dtype.format) {
    fail(Code::data,
         "%s: tensor '%s' at offset %llu is stored as %s, which is not supported; pack the model with another format",
         file.path().c_str(), tensor.name.c_str(), static_cast<unsigned long long>(tensor.offset), dtype.name);
  }
  TensorInfo info;
  info.name = tensor.name;
  info.format = *dtype.format;
  info.dims = tensor.dims;
  info.data = file.payload(tensor);
  info.file = file.path();
  info.offset = tensor.offset;
  return info;
}

// The loader of the conditioner reads the settings of its two halves as sections, and the tap as a key: a file holds
// the layers up to the tap and no more.
Json conditioner_config(const CmfFile& file) {
  Json config = Json::object();
  if (const Json text = file.config("te.config_json"); text.is_object()) {
    config.set("text_config", text);
    if (const Json* layers = text.find("num_hidden_layers")) config.set("text_encoder_layer", *layers);
  }
  if (const Json vision = file.config("vis.config_json"); vision.is_object()) config.set("vision_config", vision);
  return config;
}

const Json* path_in(const Json& json, std::initializer_list<const char*> keys) {
  const Json* at = &json;
  for (const char* key : keys) {
    at = at->find(key);
    if (at == nullptr) return nullptr;
  }
  return at;
}

}  // namespace

std::vector<CmfPart> cmf_parts(const std::shared_ptr<const CmfFile>& file) {
  std::vector<std::vector<TensorInfo>> tensors(std::size(kParts));
  for (const CmfTensor& tensor : file->tensors()) {
    const std::string_view name = tensor.name;
    const bool config = name.size() >= kConfigSuffix.size() &&
                        name.substr(name.size() - kConfigSuffix.size()) == kConfigSuffix && tensor.dtype == kCmfRaw;
    if (config) continue;
    const auto row =
        std::find_if(std::begin(kParts), std::end(kParts), [&](const PartRow& part) { return belongs(part, name); });
    if (row == std::end(kParts)) continue;  // of other programs
    tensors[static_cast<size_t>(row - std::begin(kParts))].push_back(info_of(*file, tensor));
  }
  std::vector<CmfPart> parts;
  for (size_t i = 0; i < std::size(kParts); ++i) {
    if (tensors[i].empty()) continue;
    CmfPart part;
    part.role = kParts[i].role;
    part.prefix = kParts[i].prefix;
    part.source = std::make_shared<CmfSource>(file, part.role, std::move(tensors[i]));
    part.config = part.role == Role::conditioner ? conditioner_config(*file)
                                                 : file->config(part.prefix + std::string(kConfigSuffix));
    parts.push_back(std::move(part));
  }
  return parts;
}

Json cmf_defaults(const CmfFile& file) {
  Json defaults;
  const Json dit = file.config("dit.config_json");
  const std::pair<const char*, const char*> shifts[] = {{"sigma_shift_video", "video_shift"},
                                                        {"sigma_shift_audio", "audio_shift"}};
  for (const auto& [key, name] : shifts) {
    const Json* value = dit.find(key);
    if (value != nullptr && value->is_number()) defaults.set(name, *value);
  }
  // Such a file is a model of four evaluations, stepped on both clocks (design 2).
  const Json* lora = path_in(file.header(), {"provenance", "sources", "lora"});
  if (lora != nullptr && !lora->is_null() && lower(lora->dump()).find("turbo") != std::string::npos) {
    for (const auto& [name, value] : {std::pair{"steps", 4}, {"width", 512}, {"height", 288}, {"frames", 39}}) {
      defaults.set(name, value);
    }
    defaults.set("scheduler", "two-clock").set("sampler", "two-clock");
  }
  if (const Json* own = path_in(file.header(), {"h3", "defaults"}); own != nullptr && own->is_object()) {
    for (const auto& [key, value] : own->members()) defaults.set(key, value);
  }
  return defaults;
}

std::vector<Partition> cmf_partitions(const CmfFile& file) {
  std::vector<Partition> found;
  std::string text;
  if (const Json* own = path_in(file.header(), {"h3", "partition"})) {
    text = own->is_string() ? own->as_string() : "";
  } else if (const Json* sources = path_in(file.header(), {"provenance", "sources"})) {
    text = lower(sources->dump());
  }
  for (const Partition partition : {Partition::fl2va, Partition::ref2va}) {
    if (text.find(name_of(partition)) != std::string::npos) found.push_back(partition);
  }
  return found;
}

std::optional<TokenizerFiles> cmf_tokenizer(const CmfFile& file) {
  const std::string_view text = file.text_of(file.envelope().vocab);
  if (text.empty()) return std::nullopt;
  TokenizerFiles files;
  files.origin = file.path();
  files.tokenizer_json = text;
  if (const Json* config = file.header().find("tokenizer_config"); config != nullptr && config->is_object()) {
    files.tokenizer_config_json = config->dump();
  }
  return files;
}

}  // namespace h3
