// The official release layout, assembled from the toy files of a golden folder: the ComfyUI transformer with its QKV
// rows replaced by the interleaved ones and cut into shards, the original video VAE, and the components that have one
// spelling.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file_map.h"
#include "store/tensor_source.h"

namespace h3 {

// Writes `out`/FL2VA. Every tensor keeps its bytes.
inline void assemble_official_folder(const std::string& golden, const std::string& out, size_t shards = 13) {
  namespace fs = std::filesystem;
  const std::string base = out + "/FL2VA/";
  const auto source = open_safetensors(golden + "/toy_comfy/minimax_h3_toy.safetensors");
  const auto qkv = open_safetensors(golden + "/toy_original/transformer/qkv_interleaved.safetensors");
  std::vector<std::vector<TensorToWrite>> parts(shards);
  size_t next = 0, replaced = 0;
  Json weight_map = Json::object();
  uint64_t total = 0;
  for (const TensorInfo& info : source->tensors()) {
    const TensorInfo* other = qkv->find(info.name);
    if (other != nullptr && other->dims != info.dims) fail(Code::data, "%s: shapes differ", info.name.c_str());
    replaced += other != nullptr;
    const TensorInfo& from = other != nullptr ? *other : info;
    parts[next].push_back({from.name, from.format, from.dims, from.data});
    weight_map.set(info.name, strf("model-%05zu-of-%05zu.safetensors", next + 1, shards));
    total += from.data.size();
    next = (next + 1) % shards;
  }
  if (replaced != qkv->tensors().size()) fail(Code::data, "some interleaved tensors have no counterpart");
  fs::create_directories(base + "transformer");
  for (size_t i = 0; i < shards; ++i) {
    write_safetensors(base + strf("transformer/model-%05zu-of-%05zu.safetensors", i + 1, shards), parts[i], {});
  }
  Json index;
  index.set("metadata", Json::object({{"total_size", Json(total)}})).set("weight_map", weight_map);
  std::ofstream(base + "transformer/model.safetensors.index.json") << index.dump(1);
  fs::copy_file(golden + "/toy_original/transformer/config.json", base + "transformer/config.json");
  fs::create_directories(base + "video_vae/source");
  for (const char* name : {"config.json", "source/config.json"}) {
    fs::copy_file(golden + "/toy_original/video_vae/" + name, base + "video_vae/" + name);
  }
  fs::copy_file(golden + "/toy_original/video_vae/source/model_fp16.safetensors",
                base + "video_vae/source/model.safetensors");
  for (const char* name : {"text_encoder", "tokenizer", "processor"}) {
    fs::copy(golden + "/toy/" + name, base + name, fs::copy_options::recursive);
  }
  fs::create_directories(base + "audio_vae");
  fs::copy_file(golden + "/toy/audio_vae/config.json", base + "audio_vae/config.json");
  fs::copy_file(golden + "/toy/audio_vae/diffusion_pytorch_model.safetensors", base + "audio_vae/model.safetensors");
  std::ofstream(base + "model_index.json")
      << R"({"_class_name":"MiniMaxH3Pipeline","_minimax_h3":{"schema_version":1,"partition":"fl2va",)"
      << R"("tasks":["t2va","fl2va"],"task_aliases":{},"sigma_shift_scales":{"video":12.0,"audio":3.0}}})";
}

}  // namespace h3
