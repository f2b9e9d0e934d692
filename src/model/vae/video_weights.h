// Dimensions and weight tables of the video autoencoder (spec vae 2.1). One row per tensor, with its name in the two
// spellings: diffusers, and the original release, which ComfyUI files share. `nullptr` = the spelling has no such
// tensor.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "model/vae/video_plan.h"
#include "store/weight_table.h"

namespace h3 {

// The name that CMF files use for a tensor of the original spelling (spec formats A.12). There every convolution of the
// encoder is its last temporal tap, all that a picture needs; `NAME_past` [out, in, taps - 1, side, side] has the
// others in files of this program.
std::string compact_video_name(const std::string& original);
inline constexpr const char* kPastTaps = "_past";

// From tensor shapes and config; the defaults are the release's and stand where a file says nothing.
struct VideoVaeConfig {
  bool has_decoder = false, has_encoder = false;
  bool original = false;  // names of the original release
  bool compact = false;   // those names as CMF shortens them; `original` is set too
  int64_t latent = 24, pixels = 3;
  int ratio = 16;                // pixels per latent position
  ClipGeometry clip;             // clip.ratio = pixel frames per latent frame
  std::vector<float> mean, std;  // [latent] of normalised latents
  // decoder
  int64_t layers = 36, hidden = 2048, heads = 32, head_dim = 64, ffn = 8192, registers = 4;
  double rope_theta = 100, rope_ratio = 0.75;
  float norm_eps = 1e-5f;
  // encoder
  std::vector<int64_t> channels = {128, 256, 256, 512, 512, 1024};  // per level
  std::vector<int> space_down = {2, 2, 2, 2, 1, 1}, time_down = {1, 2, 2, 1, 1, 1};
  int64_t blocks_per_level = 2, groups = 32;
  float group_eps = 1e-6f;

  int64_t inner() const { return heads * head_dim; }
  int64_t patch() const { return pixels * clip.ratio * ratio * ratio; }  // features of proj_out
  int rope_per_axis() const { return static_cast<int>(head_dim * rope_ratio) / 6; }
  int64_t level_input(size_t level) const { return level == 0 ? channels[0] : channels[level - 1]; }
  bool downsamples(size_t level) const { return space_down[level] > 1 || time_down[level] > 1; }
};

enum class VideoDim : uint8_t {
  none,
  one,
  three,
  pixels,
  latent,
  moments,
  hidden,
  inner,
  inner3,
  ffn,
  ffn2,
  registers,
  patch,
  first,
  last,
  in,
  out
};

// Length of an axis; `in` and `out` are the channels of the convolution block being bound.
int64_t dim_value(VideoDim dim, const VideoVaeConfig& config, int64_t in, int64_t out);

using TensorField = const TensorInfo*;

template <class Group>
struct VideoRow {
  TensorField Group::*field;
  const char* diffusers;
  const char* original;
  std::array<VideoDim, 5> dims;
  int flags = kKeepF32;  // WeightFlags
};

struct DecoderBlockTensors {
  TensorField norm1, norm2, scale1, scale2;
  TensorField q, q_bias, k, k_bias, v, v_bias;  // diffusers
  TensorField qkv, qkv_bias;                    // original: rows per head [q; k; v]
  TensorField out, out_bias;
  TensorField w1, w1_bias;  // diffusers [up; gate], original [gate; up]
  TensorField w2, w2_bias;
};
struct DecoderTensors {
  TensorField post_quant, post_quant_bias, proj_in, proj_in_bias, registers, norm_out, norm_out_bias, proj_out,
      proj_out_bias;
};
struct ResnetTensors {
  TensorField norm1, norm1_bias, conv1, conv1_bias, norm2, norm2_bias, conv2, conv2_bias;
};
struct ShortcutTensors {  // only where a block changes the channel count
  TensorField conv, bias;
};
struct DownsampleTensors {
  TensorField conv, bias;
};
struct EncoderTensors {
  TensorField conv_in, conv_in_bias, norm_out, norm_out_bias, conv_out, conv_out_bias, quant, quant_bias;
};

namespace video_rows {
using enum VideoDim;

inline constexpr VideoRow<DecoderTensors> kDecoder[] = {
    {&DecoderTensors::post_quant, "post_quant_conv.weight", "post_quant_conv.weight", {latent, latent, one, one, one}},
    {&DecoderTensors::post_quant_bias, "post_quant_conv.bias", "post_quant_conv.bias", {latent}},
    {&DecoderTensors::proj_in, "decoder.proj_in.weight", "decoder.x_embedder.weight", {hidden, latent}},
    {&DecoderTensors::proj_in_bias, "decoder.proj_in.bias", "decoder.x_embedder.bias", {hidden}},
    {&DecoderTensors::registers, "decoder.register_tokens", "decoder.register_tokens", {one, registers, hidden}},
    {&DecoderTensors::norm_out, "decoder.norm_out.weight", "decoder.norm_out.weight", {hidden}},
    {&DecoderTensors::norm_out_bias, "decoder.norm_out.bias", "decoder.norm_out.bias", {hidden}},
    {&DecoderTensors::proj_out, "decoder.proj_out.weight", "decoder.proj_out.weight", {patch, hidden}, kQuantise},
    {&DecoderTensors::proj_out_bias, "decoder.proj_out.bias", "decoder.proj_out.bias", {patch}},
};
// Prefix "decoder.transformer_blocks.{i}.".
inline constexpr VideoRow<DecoderBlockTensors> kDecoderBlock[] = {
    {&DecoderBlockTensors::norm1, "norm1.weight", "norm1.weight", {hidden}},
    {&DecoderBlockTensors::norm2, "norm2.weight", "norm2.weight", {hidden}},
    {&DecoderBlockTensors::scale1, "scale1", "scale1", {hidden}},
    {&DecoderBlockTensors::scale2, "scale2", "scale2", {hidden}},
    {&DecoderBlockTensors::q, "attn.to_q.weight", nullptr, {inner, hidden}, kQuantise},
    {&DecoderBlockTensors::q_bias, "attn.to_q.bias", nullptr, {inner}},
    {&DecoderBlockTensors::k, "attn.to_k.weight", nullptr, {inner, hidden}, kQuantise},
    {&DecoderBlockTensors::k_bias, "attn.to_k.bias", nullptr, {inner}},
    {&DecoderBlockTensors::v, "attn.to_v.weight", nullptr, {inner, hidden}, kQuantise},
    {&DecoderBlockTensors::v_bias, "attn.to_v.bias", nullptr, {inner}},
    {&DecoderBlockTensors::qkv, nullptr, "attn.to_qkv.weight", {inner3, hidden}, kQuantise},
    {&DecoderBlockTensors::qkv_bias, nullptr, "attn.to_qkv.bias", {inner3}},
    {&DecoderBlockTensors::out, "attn.to_out.0.weight", "attn.to_out.weight", {hidden, inner}, kQuantise},
    {&DecoderBlockTensors::out_bias, "attn.to_out.0.bias", "attn.to_out.bias", {hidden}},
    {&DecoderBlockTensors::w1, "ff.net.0.proj.weight", "ff.w1.weight", {ffn2, hidden}, kQuantise},
    {&DecoderBlockTensors::w1_bias, "ff.net.0.proj.bias", "ff.w1.bias", {ffn2}},
    {&DecoderBlockTensors::w2, "ff.net.2.weight", "ff.w2.weight", {hidden, ffn}, kQuantise},
    {&DecoderBlockTensors::w2_bias, "ff.net.2.bias", "ff.w2.bias", {hidden}},
};
inline constexpr VideoRow<EncoderTensors> kEncoder[] = {
    {&EncoderTensors::conv_in,
     "encoder.conv_in.weight",
     "encoder.conv_in.weight",
     {first, pixels, three, three, three}},
    {&EncoderTensors::conv_in_bias, "encoder.conv_in.bias", "encoder.conv_in.bias", {first}},
    {&EncoderTensors::norm_out, "encoder.norm_out.weight", "encoder.norm_out.weight", {last}},
    {&EncoderTensors::norm_out_bias, "encoder.norm_out.bias", "encoder.norm_out.bias", {last}},
    {&EncoderTensors::conv_out,
     "encoder.conv_out.weight",
     "encoder.conv_out.weight",
     {moments, last, three, three, three}},
    {&EncoderTensors::conv_out_bias, "encoder.conv_out.bias", "encoder.conv_out.bias", {moments}},
    {&EncoderTensors::quant, "quant_conv.weight", "quant_conv.weight", {moments, moments, one, one, one}},
    {&EncoderTensors::quant_bias, "quant_conv.bias", "quant_conv.bias", {moments}},
};
// Prefix "encoder.down_blocks.{l}.resnets.{b}." or "encoder.down.{l}.block.{b}.".
inline constexpr VideoRow<ResnetTensors> kResnet[] = {
    {&ResnetTensors::norm1, "norm1.weight", "norm1.weight", {in}},
    {&ResnetTensors::norm1_bias, "norm1.bias", "norm1.bias", {in}},
    {&ResnetTensors::conv1, "conv1.weight", "conv1.weight", {out, in, three, three, three}},
    {&ResnetTensors::conv1_bias, "conv1.bias", "conv1.bias", {out}},
    {&ResnetTensors::norm2, "norm2.weight", "norm2.weight", {out}},
    {&ResnetTensors::norm2_bias, "norm2.bias", "norm2.bias", {out}},
    {&ResnetTensors::conv2, "conv2.weight", "conv2.weight", {out, out, three, three, three}},
    {&ResnetTensors::conv2_bias, "conv2.bias", "conv2.bias", {out}},
};
inline constexpr VideoRow<ShortcutTensors> kShortcut[] = {
    {&ShortcutTensors::conv, "conv_shortcut.weight", "nin_shortcut.weight", {out, in, one, one, one}},
    {&ShortcutTensors::bias, "conv_shortcut.bias", "nin_shortcut.bias", {out}},
};
// Prefix "encoder.down_blocks.{l}." or "encoder.down.{l}.".
inline constexpr VideoRow<DownsampleTensors> kDownsample[] = {
    {&DownsampleTensors::conv, "downsamplers.0.conv.weight", "downsample.conv.weight", {out, out, three, three, three}},
    {&DownsampleTensors::bias, "downsamplers.0.conv.bias", "downsample.conv.bias", {out}},
};
// Known and not read (spec vae 19): the statistics are read when present.
inline constexpr const char* kIgnored[] = {"decoder.mask_token"};
inline constexpr const char* kMean = "latents_mean";
inline constexpr const char* kStd = "latents_std";

static_assert(std::size(kDecoder) * sizeof(TensorField) == sizeof(DecoderTensors), "a field has no row");
static_assert(std::size(kDecoderBlock) * sizeof(TensorField) == sizeof(DecoderBlockTensors), "a field has no row");
static_assert(std::size(kEncoder) * sizeof(TensorField) == sizeof(EncoderTensors), "a field has no row");
static_assert(std::size(kResnet) * sizeof(TensorField) == sizeof(ResnetTensors), "a field has no row");
static_assert(std::size(kShortcut) * sizeof(TensorField) == sizeof(ShortcutTensors), "a field has no row");
static_assert(std::size(kDownsample) * sizeof(TensorField) == sizeof(DownsampleTensors), "a field has no row");
}  // namespace video_rows

struct VideoVaeTensors {
  DecoderTensors decoder{};
  std::vector<DecoderBlockTensors> blocks;
  EncoderTensors encoder{};
  struct Level {
    std::vector<ResnetTensors> resnets;
    std::vector<ShortcutTensors> shortcuts;  // one per resnet, null where channels do not change
    DownsampleTensors down{};
  };
  std::vector<Level> levels;
  std::map<TensorField, TensorField> past;  // by the tensor of the last tap (CMF)
};

// Which names the file uses, and its dimensions. Error(data) when it is no video autoencoder or the config contradicts
// itself; shapes are left to bind_video_vae.
VideoVaeConfig video_vae_config(const Component& component);
// Lengths of the axes of a convolution kernel in files of this kind; those of other tensors are unchanged.
std::vector<int64_t> stored_kernel_dims(const VideoVaeConfig& config, const std::string& name,
                                        std::vector<int64_t> dims);

// A kernel of the encoder [out, in, taps, side, side]; its last tap alone when that is asked for.
struct VideoKernel {
  int64_t out = 0, in = 0;
  int taps = 1, side = 1;
  std::vector<float> values;
};
// Error(usage) when the file holds the last tap only and all are asked for.
VideoKernel read_kernel(const WeightBinder& binder, const VideoVaeTensors& tensors, TensorField weight, bool last_tap);

// Looks every tensor of the halves that the file has up, in its spelling, and reports everything that is wrong at once.
VideoVaeTensors bind_video_vae(const Component& component, VideoVaeConfig& config);

}  // namespace h3
