// A denoiser of a few kilobytes with random weights, in any spelling, without files.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sampling/rng.h"
#include "store/model_files.h"

namespace h3::testing {

class MemorySource final : public TensorSource {
 public:
  void add(const std::string& name, std::vector<int64_t> dims, std::vector<float> values) {
    data_.push_back(std::make_unique<std::vector<float>>(std::move(values)));
    TensorInfo info;
    info.name = name;
    info.dims = std::move(dims);
    info.data = std::as_bytes(std::span<const float>(*data_.back()));
    tensors_.push_back(std::move(info));
  }
  std::vector<float> values(const std::string& name) const {
    const TensorInfo* info = find(name);
    std::vector<float> out(info->data.size() / sizeof(float));
    std::memcpy(out.data(), info->data.data(), info->data.size());
    return out;
  }
  void done() { index_tensors(); }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  const std::vector<std::string>& files() const override { return files_; }
  std::string id() const override { return "memory"; }

 private:
  std::vector<TensorInfo> tensors_;
  std::vector<std::unique_ptr<std::vector<float>>> data_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::string> files_;
};

// The same tensors without some, for tests to change; call done() afterwards.
inline std::shared_ptr<MemorySource> copy_without(const MemorySource& source,
                                                  const std::vector<std::string>& names = {}) {
  auto out = std::make_shared<MemorySource>();
  for (const TensorInfo& info : source.tensors()) {
    if (std::find(names.begin(), names.end(), info.name) == names.end())
      out->add(info.name, info.dims, source.values(info.name));
  }
  return out;
}

struct ToySize {
  int64_t hidden = 24, heads = 2, head_dim = 96, ffn = 40, layers = 3, refiner = 2, text = 20, video_row = 8,
          audio_row = 6, freq = 16, time_hidden = 12, time = 10, rope = 16;
  int64_t inner() const { return heads * head_dim; }
};

// ComfyUI names; every value from one stream, scaled so that activations stay near 1.
inline std::shared_ptr<MemorySource> toy_source(const ToySize& n = {}) {
  auto source = std::make_shared<MemorySource>();
  TorchGenerator generator(1);
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols) {
    std::vector<float> values = generator.randn(rows * cols);
    for (float& v : values) v *= 0.3f;
    source->add(name, {rows, cols}, std::move(values));
  };
  const auto vector = [&](const std::string& name, int64_t rows, float around) {
    std::vector<float> values = generator.randn(rows);
    for (float& v : values) v = around + 0.2f * v;
    source->add(name, {rows}, std::move(values));
  };
  const auto with_bias = [&](const std::string& name, int64_t rows, int64_t cols) {
    matrix(name + ".weight", rows, cols);
    vector(name + ".bias", rows, 0);
  };
  with_bias("video_patch_proj", n.hidden, n.video_row);
  with_bias("audio_patch_proj", n.hidden, n.audio_row);
  with_bias("condition_proj", n.hidden, n.text);
  with_bias("time_embedder.proj_in", n.time_hidden, n.freq);
  with_bias("time_embedder.proj_out", n.time, n.time_hidden);
  std::vector<float> frequencies;
  for (int64_t k = 0; k < n.rope; ++k) {
    frequencies.push_back(1.0f /
                          static_cast<float>(std::pow(10000.0, static_cast<double>(k) / static_cast<double>(n.rope))));
  }
  source->add("rope.inv_freq", {n.rope}, frequencies);
  const auto block = [&](const std::string& prefix) {
    vector(prefix + "norm1.weight", n.hidden, 1);
    vector(prefix + "norm2.weight", n.hidden, 1);
    vector(prefix + "attn.q_norm.weight", n.head_dim, 1);
    vector(prefix + "attn.k_norm.weight", n.head_dim, 1);
    matrix(prefix + "attn.qkv_proj.weight", 3 * n.inner(), n.hidden);
    matrix(prefix + "attn.out_proj.weight", n.hidden, n.inner());
    matrix(prefix + "mlp.fc1.weight", 2 * n.ffn, n.hidden);
    matrix(prefix + "mlp.fc2.weight", n.hidden, n.ffn);
  };
  for (int64_t i = 0; i < n.layers; ++i) {
    const std::string prefix = "blocks." + std::to_string(i) + ".";
    block(prefix);
    with_bias(prefix + "adaln_proj.linear", 18 * n.hidden, n.time);
  }
  for (int64_t i = 0; i < n.refiner; ++i) block("token_refiner.blocks." + std::to_string(i) + ".");
  vector("token_refiner.final_norm.weight", n.hidden, 1);
  vector("final_layer.norm.weight", n.hidden, 1);
  with_bias("final_layer.adaln_proj.linear", 2 * n.hidden, n.time);
  with_bias("final_layer.video_out", n.video_row, n.hidden);
  with_bias("final_layer.audio_out", n.audio_row, n.hidden);
  source->done();
  return source;
}

inline Component component_of(std::shared_ptr<TensorSource> source, QkvOrder order = QkvOrder::contiguous) {
  Component component;
  component.role = Role::dit;
  component.source = std::move(source);
  component.origin = "toy.safetensors";
  component.qkv_order = order;
  return component;
}

}  // namespace h3::testing
