// A video autoencoder of a few kilobytes, random and seeded by name, in both spellings; all structure of the release.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/vae/video_vae.h"
#include "store/tensor_source.h"

namespace h3 {

class MapSource final : public TensorSource {
 public:
  explicit MapSource(std::map<std::string, std::pair<std::vector<int64_t>, std::vector<float>>> tensors)
      : values_(std::move(tensors)) {
    for (const auto& [name, tensor] : values_) {
      tensors_.push_back({name, Format::f32, tensor.first, std::as_bytes(std::span(tensor.second)), "memory", 0});
    }
    index_tensors();
  }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  const std::vector<std::string>& files() const override { return files_; }
  std::string id() const override { return "memory"; }

 private:
  std::map<std::string, std::pair<std::vector<int64_t>, std::vector<float>>> values_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::string> files_;
};

class TinyVideoVae {
 public:
  using Map = std::map<std::string, std::pair<std::vector<int64_t>, std::vector<float>>>;
  static constexpr int64_t kLatent = 4, kHeads = 2, kDim = 16, kHidden = 32, kFfn = 48;
  Map tensors;

  TinyVideoVae() {
    add_decoder();
    add_encoder();
  }

  // Without config everything but the group count follows from the shapes.
  Component component() const {
    Component component;
    component.role = Role::video_vae;
    component.origin = "tiny.safetensors";
    component.source = std::make_shared<MapSource>(tensors);
    component.config = Json::parse(
        R"({"latent_channels": 4, "decoder_attention_head_dim": 16, "norm_num_groups": 2,
            "latents_mean": [0.5, -0.25, 0.125, 1], "latents_std": [1.5, 0.75, 1, 2]})",
        "config");
    return component;
  }

  void keep(const std::function<bool(const std::string&)>& wanted) {
    std::erase_if(tensors, [&](const auto& item) { return !wanted(item.first); });
  }

  // The same weights under the names and row orders of the original release.
  TinyVideoVae original() const {
    TinyVideoVae other;
    other.tensors.clear();
    for (const auto& [name, tensor] : tensors) other.tensors[renamed(name)] = tensor;
    for (int block = 0; block < 2; ++block) {
      const std::string at = "decoder.transformer_blocks." + std::to_string(block) + ".";
      for (const char* kind : {"weight", "bias"}) other.interleave(at, kind);
      for (const char* kind : {"weight", "bias"}) {  // [up; gate] -> [gate; up]
        std::vector<float>& rows = other.tensors.at(at + "ff.w1." + kind).second;
        std::rotate(rows.begin(), rows.begin() + rows.size() / 2, rows.end());
      }
    }
    other.tensors["decoder.mask_token"] = {{1, 1, kHidden}, std::vector<float>(kHidden)};
    return other;
  }

 private:
  void add(const std::string& name, std::vector<int64_t> dims, float scale, float offset = 0) {
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    uint32_t state = 2166136261u;
    for (char c : name) state = (state ^ static_cast<uint8_t>(c)) * 16777619u;
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) {
      state = state * 1664525u + 1013904223u;
      v = offset + scale * (static_cast<float>(state >> 8) / 8388608.0f - 1.0f);
    }
    tensors[name] = {std::move(dims), std::move(values)};
  }
  void linear(const std::string& name, int64_t out, int64_t in) {
    add(name + ".weight", {out, in}, 1.5f / std::sqrt(static_cast<float>(in)));
    add(name + ".bias", {out}, 0.2f);
  }
  void conv(const std::string& name, int64_t out, int64_t in, int64_t k) {
    add(name + ".weight", {out, in, k, k, k}, 2.0f / std::sqrt(static_cast<float>(in * k * k * k)));
    add(name + ".bias", {out}, 0.2f);
  }
  void norm(const std::string& name, int64_t n, bool bias) {
    add(name + ".weight", {n}, 0.2f, 1.0f);
    if (bias) add(name + ".bias", {n}, 0.2f);
  }
  void add_decoder() {
    conv("post_quant_conv", kLatent, kLatent, 1);
    linear("decoder.proj_in", kHidden, kLatent);
    add("decoder.register_tokens", {1, 3, kHidden}, 1.0f);
    norm("decoder.norm_out", kHidden, true);
    linear("decoder.proj_out", 3 * 4 * 16 * 16, kHidden);
    for (int i = 0; i < 2; ++i) {
      const std::string at = "decoder.transformer_blocks." + std::to_string(i) + ".";
      norm(at + "norm1", kHidden, false);
      norm(at + "norm2", kHidden, false);
      add(at + "scale1", {kHidden}, 0.1f, 0.3f);
      add(at + "scale2", {kHidden}, 0.1f, 0.3f);
      for (const char* name : {"to_q", "to_k", "to_v"}) linear(at + "attn." + name, kHeads * kDim, kHidden);
      linear(at + "attn.to_out.0", kHidden, kHeads * kDim);
      linear(at + "ff.net.0.proj", 2 * kFfn, kHidden);
      linear(at + "ff.net.2", kHidden, kFfn);
    }
  }
  void add_encoder() {
    const int64_t channels[6] = {4, 6, 6, 8, 8, 10};
    conv("encoder.conv_in", channels[0], 3, 3);
    int64_t in = channels[0];
    for (int level = 0; level < 6; ++level) {
      const std::string at = "encoder.down_blocks." + std::to_string(level) + ".";
      const std::string block = at + "resnets.0.";
      norm(block + "norm1", in, true);
      conv(block + "conv1", channels[level], in, 3);
      norm(block + "norm2", channels[level], true);
      conv(block + "conv2", channels[level], channels[level], 3);
      if (in != channels[level]) conv(block + "conv_shortcut", channels[level], in, 1);
      in = channels[level];
      if (level < 4) conv(at + "downsamplers.0.conv", in, in, 3);
    }
    norm("encoder.norm_out", in, true);
    conv("encoder.conv_out", 2 * kLatent, in, 3);
    conv("quant_conv", 2 * kLatent, 2 * kLatent, 1);
  }

  static std::string renamed(std::string name) {
    const std::pair<const char*, const char*> table[] = {{"decoder.proj_in", "decoder.x_embedder"},
                                                         {"to_out.0", "to_out"},
                                                         {"ff.net.0.proj", "ff.w1"},
                                                         {"ff.net.2", "ff.w2"},
                                                         {"down_blocks", "down"},
                                                         {"resnets", "block"},
                                                         {"conv_shortcut", "nin_shortcut"},
                                                         {"downsamplers.0", "downsample"}};
    for (const auto& [from, to] : table) {
      const size_t at = name.find(from);
      if (at != std::string::npos) name.replace(at, std::string(from).size(), to);
    }
    return name;
  }
  void interleave(const std::string& at, const std::string& kind) {
    std::vector<float> rows;
    const int64_t width = kind == "weight" ? kHidden : 1;
    for (int64_t head = 0; head < kHeads; ++head) {
      for (const char* plane : {"attn.to_q.", "attn.to_k.", "attn.to_v."}) {
        const std::vector<float>& part = tensors.at(at + plane + kind).second;
        rows.insert(rows.end(), part.begin() + head * kDim * width, part.begin() + (head + 1) * kDim * width);
      }
    }
    for (const char* plane : {"attn.to_q.", "attn.to_k.", "attn.to_v."}) tensors.erase(at + plane + kind);
    std::vector<int64_t> dims = {3 * kHeads * kDim};
    if (width > 1) dims.push_back(width);
    tensors[at + "attn.to_qkv." + kind] = {dims, rows};
  }
};

}  // namespace h3
