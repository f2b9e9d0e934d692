#include "apps/pack/comfy_pack.h"

#include <algorithm>

#include "base/error.h"
#include "model/dit/export.h"
#include "store/cmf.h"
#include "store/comfy_quant.h"

namespace h3 {
namespace {

constexpr std::string_view kEnding = ".safetensors", kWeight = ".weight";

}  // namespace

bool is_comfy_pack(const PackOptions& options) { return options.output.ends_with(kEnding); }

std::string pack_refusal(const PackOptions& options, Format format) {
  const bool nvfp4 = format == Format::nvfp4;
  if (!is_comfy_pack(options)) {
    if (cmf_dtype_of(format)) return "";
    return std::string("a CMF cannot hold ") + row_of(format).name +
           (nvfp4 ? "; name the output FILE.safetensors" : "; choose a format with --quant");
  }
  if (nvfp4 || is_plain(format)) return "";
  return std::string("a safetensors file is written with f32, f16, bf16 and nvfp4, not with ") + row_of(format).name +
         "; choose one with --quant, or name the output FILE.cmf";
}

PackOptions comfy_options(const ModelFiles& files, const PackOptions& options) {
  PackOptions only = options;
  only.parts = {.conditioner = false,
                .vision = false,
                .video_decoder = false,
                .video_encoder = false,
                .audio_decoder = false,
                .audio_encoder = false};
  only.parts.dit = options.parts.dit;
  const Component* const dit = files.find(Role::dit);
  if (dit == nullptr || !options.parts.dit) {
    fail(Code::usage, "pack: %s would hold the transformer alone, and there is none; name the output FILE.cmf",
         options.output.c_str());
  }
  if (dit->spelling == Spelling::cmf && dit->source->find("dit.final_layer.adaln.table") != nullptr) {
    fail(Code::usage,
         "pack: every block of %s has an AdaLN curve of its own, a safetensors file holds one for all; "
         "pack from the loose files",
         dit->origin.c_str());
  }
  return only;
}

ComfyTensors::ComfyTensors(const ModelFiles& files, const PackContents& contents) {
  if (contents.dit->branches_in_curves()) {
    fail(Code::usage,
         "pack: an adapter changes the AdaLN of pruned weights, which gives every block a curve of its own; a "
         "safetensors "
         "file holds one for all; name the output FILE.cmf");
  }
  for (const PackTensor& tensor : contents.tensors) add(tensor);
  metadata_ = {{"format", "pt"}, {"h3.qkv_order", name_of(QkvOrder::contiguous)}};
  const bool both = files.find_dit(Partition::fl2va) != nullptr && files.find_dit(Partition::ref2va) != nullptr;
  const Component& dit = *files.find(Role::dit);
  if (!both && !dit.partition_from.starts_with("assumed")) metadata_["h3.partition"] = name_of(dit.partition);
}

void ComfyTensors::add(const PackTensor& tensor) {
  const std::string name = dit::comfy_name(tensor.tensor.name);
  first_.push_back(name.empty() ? -1 : static_cast<int64_t>(entries_.size()));
  if (name.empty()) return;
  if (tensor.format != Format::nvfp4) {
    entries_.push_back({name, tensor.format, tensor.tensor.dims});
    return;
  }
  const std::string layer = name.substr(0, name.size() - kWeight.size());
  for (SafetensorsEntry& entry : nvfp4_entries(layer, tensor.tensor.dims[0], tensor.tensor.dims[1])) {
    entries_.push_back(std::move(entry));
  }
}

void ComfyTensors::write(SafetensorsWriter& writer, size_t tensor, const StoredMatrix& matrix) const {
  const size_t first = static_cast<size_t>(first_[tensor]);
  writer.write(first, matrix.data);
  if (matrix.format != Format::nvfp4) return;
  writer.write(first + 1, matrix.scale);
  writer.write(first + 2, matrix.scale2);
  writer.write(first + 3, std::as_bytes(std::span(kNvfp4Declaration)));
}

}  // namespace h3
