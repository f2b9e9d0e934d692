// Transformers as ComfyUI's safetensors hold them (spec formats C): what a pack named *.safetensors is.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "apps/pack/collect.h"
#include "store/safetensors_writer.h"

namespace h3 {

// A number for each weight, without blocks or scales.
constexpr bool is_plain(Format format) {
  return format == Format::f32 || format == Format::f16 || format == Format::bf16;
}

bool is_comfy_pack(const PackOptions& options);

// Whether the container of the output holds a format: "" or why not.
std::string pack_refusal(const PackOptions& options, Format format);

// The options of such a pack: the transformer alone. Error(usage) for curves that ComfyUI's one table cannot hold.
PackOptions comfy_options(const ModelFiles& files, const PackOptions& options);

// A tensor of the pack as entries of the file: one, or a matrix of NVFP4 with its scales and its declaration; none for
// the curves of blocks, which repeat the final layer's.
class ComfyTensors {
 public:
  ComfyTensors(const ModelFiles& files, const PackContents& contents);
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  std::map<std::string, std::string> metadata() const { return metadata_; }
  bool writes(size_t tensor) const { return first_[tensor] >= 0; }
  void write(SafetensorsWriter& writer, size_t tensor, const StoredMatrix& matrix) const;

 private:
  void add(const PackTensor& tensor);
  std::vector<SafetensorsEntry> entries_;
  std::vector<int64_t> first_;  // of each tensor of the pack; -1 = none
  std::map<std::string, std::string> metadata_;
};

}  // namespace h3
