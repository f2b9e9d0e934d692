// Every tensor of the conditioner, once: these rows drive loading, shape errors, packing policy and memory planning.
// Names are behind the roots that dims.h detects (spec conditioner 5.2, 6.2).
#pragma once

#include <iterator>
#include <vector>

#include "model/text/dims.h"
#include "store/weight_table.h"

namespace h3::text {

// A length that the checkpoint's dimensions resolve; none = no axis.
enum class Dim : uint8_t {
  none,
  // language model
  vocab,
  hidden,
  query,
  kv,
  head,
  ffn,
  // vision tower; merged = 4 hidden, norm = of the merger being bound, patch_row = 1536
  positions,
  v_hidden,
  v_hidden3,
  v_ffn,
  v_out,
  merged,
  norm,
  patch_row,
  rgb,
  pair,
  patch,
};

struct Lengths {
  const LanguageDims* language = nullptr;
  const VisionDims* vision = nullptr;
  int64_t norm = 0;
  int64_t operator()(Dim dim) const;
};

using Info = const TensorInfo*;

struct EmbedTensors {
  Info table;  // rows are decoded on demand and never uploaded as a whole
};
inline constexpr WeightRow<EmbedTensors, Dim> kEmbed[] = {
    {&EmbedTensors::table, "embed_tokens.weight", {Dim::vocab, Dim::hidden}, kQuantise},
};
static_assert(std::size(kEmbed) * sizeof(Info) == sizeof(EmbedTensors), "a field has no row");

struct LayerTensors {
  Info input_norm, q, k, v, q_norm, k_norm, out, mlp_norm, gate, up, down;
};
inline constexpr WeightRow<LayerTensors, Dim> kLayer[] = {
    {&LayerTensors::input_norm, "input_layernorm.weight", {Dim::hidden}, kKeepF32},
    {&LayerTensors::q, "self_attn.q_proj.weight", {Dim::query, Dim::hidden}, kQuantise},
    {&LayerTensors::k, "self_attn.k_proj.weight", {Dim::kv, Dim::hidden}, kQuantise},
    {&LayerTensors::v, "self_attn.v_proj.weight", {Dim::kv, Dim::hidden}, kQuantise},
    {&LayerTensors::q_norm, "self_attn.q_norm.weight", {Dim::head}, kKeepF32},
    {&LayerTensors::k_norm, "self_attn.k_norm.weight", {Dim::head}, kKeepF32},
    {&LayerTensors::out, "self_attn.o_proj.weight", {Dim::hidden, Dim::query}, kQuantise},
    {&LayerTensors::mlp_norm, "post_attention_layernorm.weight", {Dim::hidden}, kKeepF32},
    {&LayerTensors::gate, "mlp.gate_proj.weight", {Dim::ffn, Dim::hidden}, kQuantise},
    {&LayerTensors::up, "mlp.up_proj.weight", {Dim::ffn, Dim::hidden}, kQuantise},
    {&LayerTensors::down, "mlp.down_proj.weight", {Dim::hidden, Dim::ffn}, kQuantise},
};
static_assert(std::size(kLayer) * sizeof(Info) == sizeof(LayerTensors), "a field has no row");

struct StemTensors {
  Info patch, patch_bias, positions;
};
inline constexpr WeightRow<StemTensors, Dim> kStem[] = {
    // The kernel covers one patch, so the convolution is a matrix over the element order of a patch row.
    {&StemTensors::patch, "patch_embed.proj.weight", {Dim::v_hidden, Dim::rgb, Dim::pair, Dim::patch, Dim::patch}},
    {&StemTensors::patch_bias, "patch_embed.proj.bias", {Dim::v_hidden}, kKeepF32},
    {&StemTensors::positions, "pos_embed.weight", {Dim::positions, Dim::v_hidden}, kKeepF32},
};
static_assert(std::size(kStem) * sizeof(Info) == sizeof(StemTensors), "a field has no row");

// The same three tensors as CMF spells them.
inline constexpr WeightRow<StemTensors, Dim> kCompactStem[] = {
    {&StemTensors::patch, "patch_embed.weight", {Dim::v_hidden, Dim::patch_row}, kQuantise},
    {&StemTensors::patch_bias, "patch_embed.bias", {Dim::v_hidden}, kKeepF32},
    {&StemTensors::positions, "pos_embed.weight", {Dim::positions, Dim::v_hidden}, kKeepF32},
};
static_assert(std::size(kCompactStem) * sizeof(Info) == sizeof(StemTensors), "a field has no row");

struct BlockTensors {
  Info norm1, norm1_bias, qkv, qkv_bias, out, out_bias, norm2, norm2_bias, fc1, fc1_bias, fc2, fc2_bias;
};
inline constexpr WeightRow<BlockTensors, Dim> kBlock[] = {
    {&BlockTensors::norm1, "norm1.weight", {Dim::v_hidden}, kKeepF32},
    {&BlockTensors::norm1_bias, "norm1.bias", {Dim::v_hidden}, kKeepF32},
    {&BlockTensors::qkv, "attn.qkv.weight", {Dim::v_hidden3, Dim::v_hidden}, kQuantise},
    {&BlockTensors::qkv_bias, "attn.qkv.bias", {Dim::v_hidden3}, kKeepF32},
    {&BlockTensors::out, "attn.proj.weight", {Dim::v_hidden, Dim::v_hidden}, kQuantise},
    {&BlockTensors::out_bias, "attn.proj.bias", {Dim::v_hidden}, kKeepF32},
    {&BlockTensors::norm2, "norm2.weight", {Dim::v_hidden}, kKeepF32},
    {&BlockTensors::norm2_bias, "norm2.bias", {Dim::v_hidden}, kKeepF32},
    {&BlockTensors::fc1, "mlp.linear_fc1.weight", {Dim::v_ffn, Dim::v_hidden}, kQuantise},
    {&BlockTensors::fc1_bias, "mlp.linear_fc1.bias", {Dim::v_ffn}, kKeepF32},
    {&BlockTensors::fc2, "mlp.linear_fc2.weight", {Dim::v_hidden, Dim::v_ffn}, kQuantise},
    {&BlockTensors::fc2_bias, "mlp.linear_fc2.bias", {Dim::v_hidden}, kKeepF32},
};
static_assert(std::size(kBlock) * sizeof(Info) == sizeof(BlockTensors), "a field has no row");

struct MergerTensors {
  Info norm, norm_bias, fc1, fc1_bias, fc2, fc2_bias;
};
inline constexpr WeightRow<MergerTensors, Dim> kMerger[] = {
    {&MergerTensors::norm, "norm.weight", {Dim::norm}, kKeepF32},
    {&MergerTensors::norm_bias, "norm.bias", {Dim::norm}, kKeepF32},
    {&MergerTensors::fc1, "linear_fc1.weight", {Dim::merged, Dim::merged}, kQuantise},
    {&MergerTensors::fc1_bias, "linear_fc1.bias", {Dim::merged}, kKeepF32},
    {&MergerTensors::fc2, "linear_fc2.weight", {Dim::v_out, Dim::merged}, kQuantise},
    {&MergerTensors::fc2_bias, "linear_fc2.bias", {Dim::v_out}, kKeepF32},
};
static_assert(std::size(kMerger) * sizeof(Info) == sizeof(MergerTensors), "a field has no row");

// AWQ moves the column factors of q, k, v, gate and up into the norms before them and keeps those of the other two as
// pre_quant_scale. A layer that shows such factors must have all its matrices from the same quantisation: with another
// encoder's weights its norms would be wrong, and nothing else would show it (spec conditioner 9). Adds problems.
void check_awq(WeightBinder& binder, const std::vector<LayerTensors>& layers);

}  // namespace h3::text
