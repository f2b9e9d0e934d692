#include "model/vae/video_weights.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <string_view>

#include "base/error.h"

namespace h3 {
namespace {

// Statistics of the released latents (spec vae 1), for files that carry none.
constexpr float kReleaseMean[24] = {
    0.858090341091156f,    -0.9606591463088989f,  1.0661640167236328f,   -0.5090325474739075f, -0.2727581858634949f,
    -1.3675414323806763f,  -0.2553254961967468f,  -0.26907554268836975f, -0.5376840829849243f, -0.0464097298681736f,
    0.6657370328903198f,   0.19690127670764923f,  -0.5460608005523682f,  -0.4035342037677765f, -0.23683024942874908f,
    0.25928452610969543f,  -0.30133944749832153f, 0.211341992020607f,    -1.1206848621368408f, 0.3581933379173279f,
    -0.04225143790245056f, 0.2604829967021942f,   0.22864092886447906f,  0.7056031823158264f};
constexpr float kReleaseStd[24] = {1.2223774194717407f, 1.2767263650894165f,  1.6831774711608887f, 1.7549455165863037f,
                                   1.5636216402053833f, 2.194143533706665f,   0.9653137922286987f, 1.0569885969161987f,
                                   0.841948926448822f,  0.7729952931404114f,  1.8955937623977661f, 0.946841835975647f,
                                   0.7996809482574463f, 0.44988900423049927f, 0.7197399735450745f, 0.6936293244361877f,
                                   2.961095094680786f,  2.7694199085235596f,  3.0496184825897217f, 2.1088054180145264f,
                                   3.276226282119751f,  3.1627357006073f,     2.2816812992095947f, 2.6127843856811523f};

// The first of the keys that the config has; "a.b" looks b up inside a.
const Json* config_value(const Json& config, std::initializer_list<const char*> keys) {
  for (std::string_view key : keys) {
    const size_t dot = key.find('.');
    const Json* value = config.find(key.substr(0, dot));
    if (value != nullptr && dot != std::string_view::npos) value = value->find(key.substr(dot + 1));
    if (value != nullptr && !value->is_null()) return value;
  }
  return nullptr;
}

template <class T>
void read_number(const Json& config, std::initializer_list<const char*> keys, T& out) {
  const Json* value = config_value(config, keys);
  if (value == nullptr) return;
  if constexpr (std::is_floating_point_v<T>) {
    out = static_cast<T>(value->as_double());
  } else {
    out = static_cast<T>(value->as_int());
  }
}

template <class T>
void read_list(const Json& config, std::initializer_list<const char*> keys, std::vector<T>& out) {
  const Json* value = config_value(config, keys);
  if (value == nullptr) return;
  out.clear();
  for (const Json& item : value->items()) {
    if constexpr (std::is_floating_point_v<T>) {
      out.push_back(static_cast<T>(item.as_double()));
    } else {
      out.push_back(static_cast<T>(item.as_int()));
    }
  }
}

const TensorInfo* find(const Component& component, const std::string& name) {
  return component.source->find(component.prefix + name);
}

// Extent of one axis of a tensor, or the fallback when the file has no such tensor.
int64_t extent(const Component& component, const std::string& name, size_t axis, int64_t fallback) {
  const TensorInfo* info = find(component, name);
  return info != nullptr && axis < info->dims.size() ? info->dims[axis] : fallback;
}

// One more than the largest n in names "<prefix>n.", 0 when there is none.
int64_t count_indexed(const Component& component, const std::string& prefix) {
  int64_t count = 0;
  const std::string whole = component.prefix + prefix;
  for (const TensorInfo& info : component.source->tensors()) {
    if (!info.name.starts_with(whole)) continue;
    const char* begin = info.name.data() + whole.size();
    const char* end = info.name.data() + info.name.size();
    int64_t index = 0;
    const auto [stop, error] = std::from_chars(begin, end, index);
    if (error == std::errc() && stop != end && *stop == '.' && index < 100000) count = std::max(count, index + 1);
  }
  return count;
}

bool any_with_prefix(const Component& component, const std::string& prefix) {
  const std::string whole = component.prefix + prefix;
  return std::any_of(component.source->tensors().begin(), component.source->tensors().end(),
                     [&](const TensorInfo& info) { return info.name.starts_with(whole); });
}

// As the file spells a name of the spelling that `original` selects.
std::string spelled(const VideoVaeConfig& config, const std::string& name) {
  return config.compact ? compact_video_name(name) : name;
}

std::string level_prefix(const VideoVaeConfig& config, size_t level) {
  return (config.original ? "encoder.down." : "encoder.down_blocks.") + std::to_string(level) + ".";
}
const char* resnet_folder(const VideoVaeConfig& config) { return config.original ? "block." : "resnets."; }

void read_decoder(const Component& component, VideoVaeConfig& c) {
  const std::string blocks = "decoder.transformer_blocks.", first = blocks + "0.";
  const auto length = [&](const std::string& name, size_t axis, int64_t fallback) {
    return extent(component, spelled(c, name), axis, fallback);
  };
  c.layers = std::max<int64_t>(1, count_indexed(component, spelled(c, blocks)));
  read_number(component.config, {"decoder_num_layers", "vit_decoder_kwargs.num_layers", "num_layers"}, c.layers);
  c.hidden = length("decoder.norm_out.weight", 0, c.hidden);
  read_number(component.config, {"decoder_attention_head_dim", "vit_decoder_kwargs.dim_head", "dim_head"}, c.head_dim);
  c.heads = c.original ? length(first + "attn.to_qkv.bias", 0, 3 * c.hidden) / 3 / std::max<int64_t>(1, c.head_dim)
                       : length(first + "attn.to_q.bias", 0, c.hidden) / std::max<int64_t>(1, c.head_dim);
  read_number(component.config, {"decoder_num_attention_heads", "vit_decoder_kwargs.heads", "heads"}, c.heads);
  c.ffn = length(first + (c.original ? "ff.w2.weight" : "ff.net.2.weight"), 1, 4 * c.hidden);
  c.registers = length("decoder.register_tokens", 1, c.registers);
  read_number(component.config, {"decoder_rope_theta", "vit_decoder_kwargs.rope_theta", "rope_theta"}, c.rope_theta);
  read_number(component.config, {"decoder_rope_dim_ratio", "vit_decoder_kwargs.rope_dim_ratio", "rope_dim_ratio"},
              c.rope_ratio);
  read_number(component.config, {"decoder_norm_eps", "eps"}, c.norm_eps);
}

void read_encoder(const Component& component, VideoVaeConfig& c) {
  const int64_t levels = count_indexed(component, spelled(c, c.original ? "encoder.down." : "encoder.down_blocks."));
  if (levels > 0) {
    c.channels.clear();
    for (int64_t level = 0; level < levels; ++level) {
      const std::string conv = level_prefix(c, level) + resnet_folder(c) + "0.conv1.weight";
      c.channels.push_back(extent(component, spelled(c, conv), 0, 0));
    }
    c.blocks_per_level =
        std::max<int64_t>(1, count_indexed(component, spelled(c, level_prefix(c, 0) + resnet_folder(c))));
  }
  read_list(component.config, {"block_out_channels"}, c.channels);
  int64_t base = 0;
  std::vector<int64_t> multiples;
  read_number(component.config, {"ch"}, base);
  read_list(component.config, {"ch_mult"}, multiples);
  if (base > 0 && !multiples.empty()) {
    c.channels = multiples;
    for (int64_t& channels : c.channels) channels *= base;
  }
  read_number(component.config, {"layers_per_block", "num_res_blocks"}, c.blocks_per_level);
  read_number(component.config, {"norm_num_groups"}, c.groups);
  read_number(component.config, {"norm_eps"}, c.group_eps);
}

void read_shared(const Component& component, VideoVaeConfig& c) {
  read_number(component.config, {"latent_channels", "z_channels", "embed_dim"}, c.latent);
  read_list(component.config, {"spatial_downsample_factors", "space_down"}, c.space_down);
  read_list(component.config, {"temporal_downsample_factors", "time_down"}, c.time_down);
  read_number(component.config, {"clip_length", "vae_clip_length"}, c.clip.clip);
  read_number(component.config, {"token_drop", "vae_token_drop"}, c.clip.drop);
  read_list(component.config, {"latents_mean"}, c.mean);
  read_list(component.config, {"latents_std"}, c.std);
  c.ratio = c.clip.ratio = 1;
  for (int factor : c.space_down) c.ratio *= factor;
  for (int factor : c.time_down) c.clip.ratio *= factor;
}

void expect(bool good, const Component& component, const char* what, const std::string& found, const char* allowed) {
  if (good) return;
  fail(Code::data, "video autoencoder %s: %s is %s; %s", component.origin.c_str(), what, found.c_str(), allowed);
}

void check_config(const Component& component, const VideoVaeConfig& c) {
  using std::to_string;
  expect(c.latent > 0 && c.latent <= 4096, component, "latent_channels", to_string(c.latent), "allowed are 1 to 4096");
  expect(c.clip.valid() && c.clip.clip <= 1024 && c.ratio >= 1 && c.ratio <= 256 && c.clip.pre_padding() < c.clip.ratio,
         component, "the clip structure",
         strf("clip %d, temporal ratio %d, token drop %d", c.clip.clip, c.clip.ratio, c.clip.drop),
         "the released one is 17, 4, 3");
  if (c.has_decoder) {
    expect(c.layers > 0 && c.layers <= 4096, component, "decoder_num_layers", to_string(c.layers),
           "allowed: 1 to 4096");
    expect(c.heads > 0 && c.head_dim > 0 && c.hidden > 0 && c.ffn > 0 && c.registers >= 0, component,
           "the decoder width",
           strf("%lld heads of %lld, hidden %lld, ffn %lld", static_cast<long long>(c.heads),
                static_cast<long long>(c.head_dim), static_cast<long long>(c.hidden), static_cast<long long>(c.ffn)),
           "all must be positive");
    const int rotated = static_cast<int>(c.head_dim * c.rope_ratio);
    expect(rotated > 0 && rotated % 6 == 0 && rotated <= c.head_dim && c.rope_theta > 1, component,
           "the number of rotated features", to_string(rotated), "it must be a multiple of 6 within one head");
  }
  if (c.has_encoder) {
    const size_t levels = c.channels.size();
    expect(levels > 0 && c.space_down.size() == levels && c.time_down.size() == levels, component, "the level count",
           strf("%zu by channels, %zu by spatial factors, %zu by temporal factors", levels, c.space_down.size(),
                c.time_down.size()),
           "the three must agree");
    expect(c.blocks_per_level > 0 && c.blocks_per_level <= 64, component, "layers_per_block",
           to_string(c.blocks_per_level), "allowed are 1 to 64");
    for (size_t level = 0; level < levels; ++level) {
      expect(c.groups > 0 && c.channels[level] > 0 && c.channels[level] % c.groups == 0, component, "norm_num_groups",
             to_string(c.groups), "it must divide the channels of every level");
      const int space = c.space_down[level], time = c.time_down[level];
      expect((space == 2 && (time == 1 || time == 2)) || (space == 1 && time == 1), component, "a downsampling step",
             strf("%d in space, %d in time", space, time), "allowed are 1/1, 2/1 and 2/2");
    }
  }
}

}  // namespace

int64_t dim_value(VideoDim dim, const VideoVaeConfig& c, int64_t in, int64_t out) {
  switch (dim) {
    case VideoDim::none: return 0;
    case VideoDim::one: return 1;
    case VideoDim::three: return 3;
    case VideoDim::pixels: return c.pixels;
    case VideoDim::latent: return c.latent;
    case VideoDim::moments: return 2 * c.latent;
    case VideoDim::hidden: return c.hidden;
    case VideoDim::inner: return c.inner();
    case VideoDim::inner3: return 3 * c.inner();
    case VideoDim::ffn: return c.ffn;
    case VideoDim::ffn2: return 2 * c.ffn;
    case VideoDim::registers: return c.registers;
    case VideoDim::patch: return c.patch();
    case VideoDim::first: return c.channels.front();
    case VideoDim::last: return c.channels.back();
    case VideoDim::in: return in;
    case VideoDim::out: return out;
  }
  return 0;
}

std::string compact_video_name(const std::string& original) {
  constexpr std::string_view kBlocks = "decoder.transformer_blocks.", kDecoder = "decoder.", kEncoder = "encoder.";
  const auto rest = [&](std::string_view start) { return original.substr(start.size()); };
  if (original.starts_with(kBlocks)) {
    std::string name = "blocks." + rest(kBlocks);
    for (const char* norm : {".norm1.weight", ".norm2.weight"}) {
      if (name.ends_with(norm)) name.resize(name.size() - std::string_view(".weight").size());
    }
    return name;
  }
  if (original.starts_with(kDecoder)) return rest(kDecoder);
  return original.starts_with(kEncoder) ? "enc." + rest(kEncoder) : original;
}

std::vector<int64_t> stored_kernel_dims(const VideoVaeConfig& config, const std::string& name,
                                        std::vector<int64_t> dims) {
  if (!config.compact || dims.size() != 5) return dims;
  if (name.find("quant_conv") != std::string::npos) return {dims[0], dims[1]};
  return {dims[0], dims[1], dims[3], dims[4]};
}

VideoKernel read_kernel(const WeightBinder& binder, const VideoVaeTensors& tensors, TensorField weight, bool last_tap) {
  VideoKernel kernel;
  const std::vector<int64_t>& dims = weight->dims;
  kernel.out = dims[0];
  kernel.in = dims[1];
  kernel.side = dims.size() > 2 ? static_cast<int>(dims.back()) : 1;
  const int64_t area = static_cast<int64_t>(kernel.side) * kernel.side;
  const std::vector<float> stored = binder.values(weight);
  const bool whole = dims.size() == 5;
  const int stored_taps = whole ? static_cast<int>(dims[2]) : 1;
  if (whole && (!last_tap || stored_taps == 1)) {
    kernel.taps = stored_taps;
    kernel.values = stored;
    return kernel;
  }
  const auto past = tensors.past.find(weight);
  const bool complete = last_tap || kernel.side == 1 || past != tensors.past.end();
  if (!complete) {
    fail(Code::usage,
         "%s: its video encoder is for pictures only: tensor '%s' has the last of its temporal taps and no others; "
         "pack the model with h3 to encode clips",
         weight->file.c_str(), weight->name.c_str());
  }
  const bool join = !last_tap && past != tensors.past.end();
  const std::vector<float> earlier = join ? binder.values(past->second) : std::vector<float>();
  kernel.taps = join ? static_cast<int>(past->second->dims[2]) + 1 : 1;
  for (int64_t i = 0; i < kernel.out * kernel.in; ++i) {
    const int64_t before = (kernel.taps - 1) * area;
    kernel.values.insert(kernel.values.end(), earlier.begin() + i * before, earlier.begin() + (i + 1) * before);
    const auto last = stored.begin() + (i * stored_taps + stored_taps - 1) * area;
    kernel.values.insert(kernel.values.end(), last, last + area);
  }
  return kernel;
}

namespace {

struct Binding {
  WeightBinder& binder;
  const VideoVaeConfig& config;
  VideoVaeTensors& tensors;

  template <class Group, size_t N>
  Group operator()(const VideoRow<Group> (&rows)[N], const std::string& prefix, int64_t in = 0, int64_t out = 0) const {
    Group group{};
    for (const VideoRow<Group>& row : rows) {
      const char* name = config.original ? row.original : row.diffusers;
      if (name == nullptr) continue;
      std::vector<int64_t> dims;
      for (VideoDim dim : row.dims) {
        if (dim != VideoDim::none) dims.push_back(dim_value(dim, config, in, out));
      }
      const std::string full = spelled(config, prefix + name);
      const TensorField found = binder.require(full, stored_kernel_dims(config, full, dims));
      group.*row.field = found;
      if (!config.compact || dims.size() != 5 || dims[2] == 1) continue;
      --dims[2];
      if (const TensorField past = binder.optional(full + kPastTaps, dims)) tensors.past[found] = past;
    }
    return group;
  }
};

void bind_encoder(const Binding& bind, VideoVaeTensors& tensors) {
  const VideoVaeConfig& config = bind.config;
  tensors.encoder = bind(video_rows::kEncoder, "");
  for (size_t level = 0; level < config.channels.size(); ++level) {
    const std::string prefix = level_prefix(config, level);
    VideoVaeTensors::Level bound;
    const int64_t out = config.channels[level];
    for (int64_t block = 0; block < config.blocks_per_level; ++block) {
      const int64_t in = block == 0 ? config.level_input(level) : out;
      const std::string resnet = prefix + resnet_folder(config) + std::to_string(block) + ".";
      bound.resnets.push_back(bind(video_rows::kResnet, resnet, in, out));
      bound.shortcuts.push_back(in != out ? bind(video_rows::kShortcut, resnet, in, out) : ShortcutTensors{});
    }
    if (config.downsamples(level)) bound.down = bind(video_rows::kDownsample, prefix, out, out);
    tensors.levels.push_back(std::move(bound));
  }
}

}  // namespace

VideoVaeConfig video_vae_config(const Component& component) {
  VideoVaeConfig config;
  config.has_decoder = any_with_prefix(component, "decoder.");
  config.has_encoder = any_with_prefix(component, "encoder.");
  config.compact = !config.has_decoder && !config.has_encoder;
  if (config.compact) {
    config.has_decoder = any_with_prefix(component, "blocks.");
    config.has_encoder = any_with_prefix(component, "enc.");
  }
  if (!config.has_decoder && !config.has_encoder) {
    fail(Code::data, "%s is no video autoencoder: it has neither decoder.* nor encoder.* tensors",
         component.origin.c_str());
  }
  config.original = config.compact || any_with_prefix(component, "encoder.down.") ||
                    any_with_prefix(component, "decoder.x_embedder.");
  read_shared(component, config);
  if (config.has_decoder) read_decoder(component, config);
  if (config.has_encoder) read_encoder(component, config);
  check_config(component, config);
  return config;
}

VideoVaeTensors bind_video_vae(const Component& component, VideoVaeConfig& config) {
  WeightBinder binder(component);
  VideoVaeTensors tensors;
  const Binding bind{binder, config, tensors};
  if (config.has_decoder) {
    tensors.decoder = bind(video_rows::kDecoder, "");
    for (int64_t i = 0; i < config.layers; ++i) {
      tensors.blocks.push_back(
          bind(video_rows::kDecoderBlock, "decoder.transformer_blocks." + std::to_string(i) + "."));
    }
  }
  if (config.has_encoder) bind_encoder(bind, tensors);
  for (const char* name : video_rows::kIgnored) binder.ignore(name);
  // A file of one half may keep the other half's 1x1 convolution.
  if (!config.has_encoder) binder.ignore_prefix("quant_conv.");
  if (!config.has_decoder) binder.ignore_prefix("post_quant_conv.");
  const TensorInfo* mean = binder.optional(video_rows::kMean, {config.latent});
  const TensorInfo* std = binder.optional(video_rows::kStd, {config.latent});
  binder.finish();
  if (mean != nullptr) config.mean = binder.values(mean);
  if (std != nullptr) config.std = binder.values(std);
  if (config.mean.empty() && config.std.empty() && config.latent == 24) {
    config.mean.assign(std::begin(kReleaseMean), std::end(kReleaseMean));
    config.std.assign(std::begin(kReleaseStd), std::end(kReleaseStd));
  }
  for (const std::vector<float>* values : {&config.mean, &config.std}) {
    expect(static_cast<int64_t>(values->size()) == config.latent, component, "latents_mean / latents_std",
           strf("%zu values", values->size()), "one per latent channel is needed");
  }
  expect(std::all_of(config.std.begin(), config.std.end(), [](float s) { return s > 0; }), component, "latents_std",
         "not positive everywhere", "every value must be above 0");
  return tensors;
}

}  // namespace h3
