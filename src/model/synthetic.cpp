#include "model/synthetic.h"

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "codec/noise.h"
#include "codec/q4tp.h"
#include "codec/scalar.h"
#include "model/dit/weights.h"
#include "model/text/weights.h"
#include "model/vae/audio_weights.h"
#include "model/vae/video_weights.h"

namespace h3 {
namespace {

constexpr int64_t kSmallWidth = 2560, kSmallTap = 24;  // of the 4B encoder

class SyntheticSource final : public TensorSource {
 public:
  explicit SyntheticSource(uint64_t seed) : seed_(seed) {}

  void add(const std::string& name, std::vector<int64_t> dims, float center, float amplitude) {
    NoiseWeights noise;
    noise.center = center;
    noise.amplitude = amplitude;
    noise.seed = fnv1a64(std::as_bytes(std::span(name))) ^ seed_;
    payloads_.push_back(std::make_unique<NoiseWeights>(noise));
    TensorInfo info;
    info.name = name;
    info.format = Format::noise;
    info.dims = std::move(dims);
    info.data = {reinterpret_cast<const std::byte*>(payloads_.back().get()), sizeof(NoiseWeights)};
    info.file = "random weights";
    tensors_.push_back(std::move(info));
  }
  // Matrices of add_plain get this format from here on. Those of one shape and gain share their bytes, so that a model
  // of release size takes a few hundred megabytes.
  void pack(Format format) { packed_format_ = format; }

  // By shape and name: norms around one, biases small, matrices with rows of unit norm times `gain`.
  void add_plain(const std::string& name, std::vector<int64_t> dims, float gain = 1) {
    const bool bias = name.ends_with("bias");
    if (dims.size() == 1 && !bias) return add(name, std::move(dims), 1.0f, 0.1f);
    if (bias) return add(name, std::move(dims), 0.0f, 0.02f);
    int64_t inputs = 1;
    for (size_t i = 1; i < dims.size(); ++i) inputs *= dims[i];
    if (packed_format_ != Format::noise && dims.size() == 2 && inputs % 32 == 0) {
      return add_packed(name, std::move(dims), gain);
    }
    add(name, std::move(dims), 0.0f, gain * std::sqrt(3.0f / static_cast<float>(inputs)));
  }
  void finish() { index_tensors(); }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const std::map<std::string, std::string>& metadata() const override { return metadata_; }
  const std::vector<std::string>& files() const override { return files_; }
  std::string id() const override { return strf("random-%016llx", static_cast<unsigned long long>(seed_)); }

 private:
  void add_packed(const std::string& name, std::vector<int64_t> dims, float gain) {
    const int64_t rows = dims[0], cols = dims[1];
    std::vector<uint8_t>& bytes = packed_[strf("%lldx%lld %g", static_cast<long long>(rows),
                                               static_cast<long long>(cols), static_cast<double>(gain))];
    if (bytes.empty()) {
      const bool q4tp = packed_format_ == Format::q4tp;
      H3_ASSERT(q4tp || packed_format_ == Format::f8_e4m3);
      bytes = (q4tp ? q4tp_noise : float8_noise)(rows, cols, gain, seed_ + packed_.size());
    }
    TensorInfo info;
    info.name = name;
    info.format = packed_format_;
    info.dims = std::move(dims);
    info.data = std::as_bytes(std::span(bytes));
    info.file = "random weights";
    tensors_.push_back(std::move(info));
  }
  // Levels and rungs by chance; levels -8 .. 7 have a mean square of 21.5, the rungs of a row span a factor of 1.5.
  static std::vector<uint8_t> q4tp_noise(int64_t rows, int64_t cols, float gain, uint64_t seed) {
    std::vector<uint8_t> bytes(static_cast<size_t>(q4tp_bytes(rows, cols)));
    uint64_t state = seed;
    for (uint8_t& byte : bytes) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<uint8_t>(state >> 56);
    }
    const float scale = gain / std::sqrt(21.5f * static_cast<float>(cols));
    const uint16_t lo = f32_to_f16(std::log2(scale) - 0.3f), step = f32_to_f16(0.6f / 31);
    for (int64_t r = 0; r < rows; ++r) {
      uint8_t* params = &bytes[static_cast<size_t>(rows * (cols / 32) * 16 + 4 * r)];
      store_u16(params, lo);
      store_u16(params + 2, step);
    }
    return bytes;
  }

  // Multiples of 2^-9, the spacing of e4m3 below 2^-5, up to the wanted range; without a scale.
  static std::vector<uint8_t> float8_noise(int64_t rows, int64_t cols, float gain, uint64_t seed) {
    const float range = gain * std::sqrt(3.0f / static_cast<float>(cols));
    const auto most = static_cast<uint64_t>(std::clamp(std::round(range * 512), 1.0f, 15.0f));
    std::vector<uint8_t> bytes(static_cast<size_t>(rows * cols));
    uint64_t state = seed;
    for (uint8_t& byte : bytes) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      byte = static_cast<uint8_t>((state >> 56 & 0x80u) | (state >> 32) % (most + 1));
    }
    return bytes;
  }

  uint64_t seed_;
  Format packed_format_ = Format::noise;
  std::map<std::string, std::vector<uint8_t>> packed_;
  std::vector<std::unique_ptr<NoiseWeights>> payloads_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::string> files_;
};

Component component_of(Role role, std::shared_ptr<SyntheticSource> source) {
  source->finish();
  Component component;
  component.role = role;
  component.spelling = Spelling::comfy;
  component.source = std::move(source);
  component.origin = "random weights";
  return component;
}

int64_t length_of(const DitConfig& c, dit::Dim dim) {
  using dit::Dim;
  switch (dim) {
    case Dim::hidden: return c.hidden;
    case Dim::video_row: return c.video_row;
    case Dim::audio_row: return c.audio_row;
    case Dim::text: return c.text_dim;
    case Dim::block_adaln: return 18 * c.hidden;
    case Dim::final_adaln: return 2 * c.hidden;
    case Dim::head_dim: return c.head_dim;
    case Dim::inner: return c.inner();
    case Dim::inner3: return 3 * c.inner();
    case Dim::ffn: return c.ffn;
    case Dim::ffn2: return 2 * c.ffn;
    default: return 0;
  }
}

template <typename Owner, size_t kRows>
void add_dit_rows(SyntheticSource& source, const DitConfig& c, const std::string& prefix,
                  const dit::Row<Owner> (&rows)[kRows]) {
  for (const dit::Row<Owner>& row : rows) {
    const char* name = row.name[static_cast<size_t>(dit::Names::comfy)];
    if (*name == '\0' || std::strncmp(name, "time_embedder", 13) == 0 || std::strncmp(name, "rope", 4) == 0) continue;
    std::vector<int64_t> dims;
    for (const dit::Dim dim : row.dims) {
      if (dim != dit::Dim::none) dims.push_back(length_of(c, dim));
    }
    const std::string full = prefix + name;
    if (std::strcmp(name, "adaln_t_table") == 0) {
      source.add(full, {c.curve_points, c.curve_rank}, 0.0f, 1.0f);
      continue;
    }
    if (full.find("adaln") != std::string::npos && dims.size() == 2) dims[1] = c.curve_rank;
    if (full.starts_with("final_layer.video_out")) dims[0] = c.video_row;
    const bool branch_end = full.ends_with("out_proj.weight") || full.ends_with("fc2.weight");
    source.add_plain(full, std::move(dims), full.find("adaln") != std::string::npos ? 0.2f : branch_end ? 0.5f : 1.0f);
  }
}

}  // namespace

DitConfig release_dit_config(int64_t layers) {
  DitConfig c;
  c.hidden = 5376;
  c.layers = layers > 0 ? layers : 50;
  c.refiner_layers = 2;
  c.heads = 56;
  c.head_dim = 128;
  c.ffn = 14336;
  c.video_row = 96;
  c.audio_row = 32;
  c.text_dim = 5120;
  c.curve_points = 1025;
  c.curve_rank = 8;
  c.rope_pairs = 16;
  return c;
}

Component synthetic_dit(const DitConfig& config, uint64_t seed, Format matrices) {
  auto source = std::make_shared<SyntheticSource>(seed);
  add_dit_rows(*source, config, "", dit::kTrunk);
  source->pack(matrices);
  for (int64_t i = 0; i < config.refiner_layers; ++i) {
    add_dit_rows(*source, config, strf("token_refiner.blocks.%lld.", static_cast<long long>(i)), dit::kBlock);
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string prefix = strf("blocks.%lld.", static_cast<long long>(i));
    add_dit_rows(*source, config, prefix, dit::kBlock);
    add_dit_rows(*source, config, prefix, dit::kAdaln);
  }
  return component_of(Role::dit, source);
}

namespace {

struct VideoLengths {
  const VideoVaeConfig& c;
  int64_t in = 0, out = 0;
  int64_t operator()(VideoDim dim) const { return dim_value(dim, c, in, out); }
};

template <typename Group, size_t kRows>
void add_video_rows(SyntheticSource& source, const VideoLengths& lengths, const std::string& prefix,
                    const VideoRow<Group> (&rows)[kRows]) {
  for (const VideoRow<Group>& row : rows) {
    if (row.original == nullptr) continue;
    std::vector<int64_t> dims;
    for (const VideoDim dim : row.dims) {
      if (dim != VideoDim::none) dims.push_back(lengths(dim));
    }
    const std::string name = prefix + row.original;
    if (std::strncmp(row.original, "scale", 5) == 0)
      source.add(name, std::move(dims), 0.3f, 0.1f);
    else
      source.add_plain(name, std::move(dims));
  }
}

}  // namespace

Component synthetic_video_vae(int64_t layers, uint64_t seed) {
  VideoVaeConfig c;
  if (layers > 0) c.layers = layers;
  auto source = std::make_shared<SyntheticSource>(seed);
  VideoLengths lengths{c};
  add_video_rows(*source, lengths, "", video_rows::kDecoder);
  for (int64_t i = 0; i < c.layers; ++i) {
    add_video_rows(*source, lengths, strf("decoder.transformer_blocks.%lld.", static_cast<long long>(i)),
                   video_rows::kDecoderBlock);
  }
  add_video_rows(*source, lengths, "", video_rows::kEncoder);
  for (size_t level = 0; level < c.channels.size(); ++level) {
    for (int64_t b = 0; b < c.blocks_per_level; ++b) {
      lengths.in = b == 0 ? c.level_input(level) : c.channels[level];
      lengths.out = c.channels[level];
      const std::string prefix = strf("encoder.down.%zu.block.%lld.", level, static_cast<long long>(b));
      add_video_rows(*source, lengths, prefix, video_rows::kResnet);
      if (lengths.in != lengths.out) add_video_rows(*source, lengths, prefix, video_rows::kShortcut);
    }
    if (c.downsamples(level))
      add_video_rows(*source, lengths, strf("encoder.down.%zu.", level), video_rows::kDownsample);
  }
  return component_of(Role::video_vae, source);
}

Component synthetic_audio_vae(uint64_t seed) {
  const AudioVaeConfig c;
  auto source = std::make_shared<SyntheticSource>(seed);
  for (const AudioRow& row : audio_vae_rows(c)) {
    if ((row.flags & kMayBeAbsent) != 0) continue;
    const bool log_scale = row.name.find(".act.") != std::string::npos;
    if (row.weight_norm)
      source->add_plain(row.name + ".weight", row.dims, 0.7f);
    else if (log_scale)
      source->add(row.name, row.dims, 0.0f, 0.3f);
    else if (row.name.ends_with("alpha"))
      source->add(row.name, row.dims, 1.0f, 0.2f);
    else
      source->add_plain(row.name, row.dims);
  }
  return component_of(Role::audio_vae, source);
}

namespace {

template <typename Owner, size_t kRows>
void add_text_rows(SyntheticSource& source, const text::Lengths& lengths, const std::string& prefix,
                   const WeightRow<Owner, text::Dim> (&rows)[kRows]) {
  for (const WeightRow<Owner, text::Dim>& row : rows) {
    std::vector<int64_t> dims;
    for (const text::Dim dim : row.dims) {
      if (dim != text::Dim::none) dims.push_back(lengths(dim));
    }
    source.add_plain(prefix + row.name, std::move(dims));
  }
}

}  // namespace

Component synthetic_conditioner(int64_t layers, uint64_t seed, Format matrices, SyntheticEncoder kind) {
  const bool small = kind == SyntheticEncoder::small;
  text::LanguageDims dims;  // spec conditioner 6.1; formats A.11 for the small one
  dims.hidden = small ? kSmallWidth : 5120;
  dims.layers = layers > 0 ? layers : small ? kSmallTap : 50;
  dims.heads = small ? 32 : 64;
  dims.kv_heads = 8;
  dims.head_dim = 128;
  dims.ffn = small ? 9728 : 25600;
  dims.vocab = 151936;
  text::Lengths lengths;
  lengths.language = &dims;
  auto source = std::make_shared<SyntheticSource>(seed);
  add_text_rows(*source, lengths, "model.", text::kEmbed);
  source->pack(matrices);
  for (int64_t i = 0; i < dims.layers; ++i) {
    add_text_rows(*source, lengths, strf("model.layers.%lld.", static_cast<long long>(i)), text::kLayer);
  }
  return component_of(Role::conditioner, source);
}

Component synthetic_clip_proj(uint64_t seed) {
  constexpr int64_t kOut = 5120, kHidden = 16384;
  auto source = std::make_shared<SyntheticSource>(seed);
  source->add_plain("W", {kSmallWidth, kOut}, 0.5f);
  for (const auto& [name, width] : {std::pair{"in", kSmallWidth}, {"out", kOut}}) {
    source->add(std::string("mean_") + name, {width}, 0.0f, 0.1f);
    source->add(std::string("std_") + name, {width}, 1.0f, 0.1f);
  }
  source->add("sink_out", {kOut}, 0.0f, 1.0f);
  source->add_plain("mlp.0.weight", {kHidden, kSmallWidth});
  source->add_plain("mlp.0.bias", {kHidden});
  source->add_plain("mlp.2.weight", {kOut, kHidden}, 0.5f);
  source->add_plain("mlp.2.bias", {kOut});
  return component_of(Role::clip_proj, source);
}

ModelFiles synthetic_release(int layers, uint64_t seed, Format matrices, SyntheticEncoder kind,
                             const std::string& tokenizer) {
  ModelFiles files;
  files.tokenizer = tokenizer.empty() ? open_model_files({}).tokenizer : named_tokenizer(tokenizer);
  if (!files.tokenizer) fail(Code::usage, "random weights need the tokenizer of the embedded demo, or --tokenizer");
  files.components.push_back(synthetic_dit(release_dit_config(layers), seed, matrices));
  files.components.back().partition_from = files.components.back().qkv_order_from = "random weights";
  files.components.push_back(synthetic_conditioner(layers, seed + 1, matrices, kind));
  if (kind == SyntheticEncoder::small) files.components.push_back(synthetic_clip_proj(seed + 4));
  files.components.push_back(synthetic_video_vae(layers, seed + 2));
  files.components.push_back(synthetic_audio_vae(seed + 3));
  const int64_t tap = kind == SyntheticEncoder::small ? kSmallTap : 50;
  files.defaults = Json::object(
      {{"name", "random weights"}, {"text_encoder_layer", layers > 0 ? static_cast<int64_t>(layers) : tap}});
  return files;
}

}  // namespace h3
