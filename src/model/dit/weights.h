// Every tensor of the denoiser under each spelling, and their reading into row orders the forward uses.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/log.h"
#include "model/dit/config.h"
#include "quant/matrix.h"
#include "store/weight_table.h"

namespace h3::dit {

// How tensors are named. ComfyUI's names are also those of the official shards and of GGUF files.
enum class Names : uint8_t { comfy, diffusers, cmf };

enum class Dim : uint8_t {
  none,
  any,
  hidden,
  video_row,
  audio_row,
  text,
  freq,
  time_hidden,
  time,         // width of silu(temb)
  block_adaln,  // 3 modalities x 6 chunks x hidden
  final_adaln,  // 2 chunks x hidden
  head_dim,
  inner,   // heads x head_dim
  inner3,  // q, k and v
  ffn,
  ffn2,  // gate and value
  rope,
};

inline constexpr const char* kNone = "";          // not in this spelling
inline constexpr const char* kAsComfy = nullptr;  // the name of the first column

template <typename Owner>
struct Row {
  const TensorInfo* Owner::*field;
  std::array<const char*, 3> name;  // by Names, behind the prefix of the owner
  std::array<Dim, 2> dims;
  int flags = kRequired;  // WeightFlags
};

struct TrunkW {
  const TensorInfo *video_in, *video_in_bias, *audio_in, *audio_in_bias, *text_in, *text_in_bias;
  const TensorInfo *time1, *time1_bias, *time2, *time2_bias, *curve, *rope, *refiner_norm;
  const TensorInfo *final_norm, *final_adaln, *final_adaln_bias, *final_table;
  const TensorInfo *video_out, *video_out_bias, *audio_out, *audio_out_bias;
};

struct BlockW {
  const TensorInfo *norm1, *norm2, *q_norm, *k_norm;
  const TensorInfo *qkv, *q, *k, *v, *out, *fc1, *fc2;
};

struct AdalnW {
  const TensorInfo *weight, *bias, *table;
};

// Files hold either the time embedder or curves; which rows are required follows from that (bind_trunk). In a CMF of
// ours without curves the time embedder has its ComfyUI names.
inline constexpr Row<TrunkW> kTrunk[] = {
    {&TrunkW::video_in, {"video_patch_proj.weight", "proj_in.weight"}, {Dim::hidden, Dim::video_row}, kKeepF32},
    {&TrunkW::video_in_bias, {"video_patch_proj.bias", "proj_in.bias"}, {Dim::hidden}, kKeepF32},
    {&TrunkW::audio_in, {"audio_patch_proj.weight", "audio_proj_in.weight"}, {Dim::hidden, Dim::audio_row}, kKeepF32},
    {&TrunkW::audio_in_bias, {"audio_patch_proj.bias", "audio_proj_in.bias"}, {Dim::hidden}, kKeepF32},
    {&TrunkW::text_in, {"condition_proj.weight", "context_embedder.weight"}, {Dim::hidden, Dim::text}, kQuantise},
    {&TrunkW::text_in_bias, {"condition_proj.bias", "context_embedder.bias"}, {Dim::hidden}, kKeepF32},
    {&TrunkW::time1,
     {"time_embedder.proj_in.weight", "time_embedder.linear_1.weight"},
     {Dim::time_hidden, Dim::freq},
     kKeepF32 | kMayBeAbsent},
    {&TrunkW::time1_bias,
     {"time_embedder.proj_in.bias", "time_embedder.linear_1.bias"},
     {Dim::time_hidden},
     kKeepF32 | kMayBeAbsent},
    {&TrunkW::time2,
     {"time_embedder.proj_out.weight", "time_embedder.linear_2.weight"},
     {Dim::time, Dim::time_hidden},
     kKeepF32 | kMayBeAbsent},
    {&TrunkW::time2_bias,
     {"time_embedder.proj_out.bias", "time_embedder.linear_2.bias"},
     {Dim::time},
     kKeepF32 | kMayBeAbsent},
    {&TrunkW::curve, {"adaln_t_table", kNone, kNone}, {Dim::any, Dim::any}, kKeepF32 | kMayBeAbsent},
    {&TrunkW::rope, {"rope.inv_freq", kNone, "rope_inv_freq"}, {Dim::rope}, kKeepF32 | kMayBeAbsent},
    {&TrunkW::refiner_norm, {"token_refiner.final_norm.weight"}, {Dim::hidden}, kKeepF32},
    {&TrunkW::final_norm, {"final_layer.norm.weight", "norm_out.norm.weight"}, {Dim::hidden}, kKeepF32},
    {&TrunkW::final_adaln,
     {"final_layer.adaln_proj.linear.weight", "norm_out.linear.weight", "final_layer.adaln.weight"},
     {Dim::final_adaln, Dim::any},
     kAdapterTarget},
    {&TrunkW::final_adaln_bias,
     {"final_layer.adaln_proj.linear.bias", "norm_out.linear.bias", "final_layer.adaln.bias"},
     {Dim::final_adaln},
     kKeepF32},
    {&TrunkW::final_table, {kNone, kNone, "final_layer.adaln.table"}, {Dim::any, Dim::any}, kKeepF32 | kMayBeAbsent},
    {&TrunkW::video_out, {"final_layer.video_out.weight", "proj_out.weight"}, {Dim::any, Dim::hidden}, kKeepF32},
    {&TrunkW::video_out_bias, {"final_layer.video_out.bias", "proj_out.bias"}, {Dim::any}, kKeepF32},
    {&TrunkW::audio_out,
     {"final_layer.audio_out.weight", "audio_proj_out.weight"},
     {Dim::audio_row, Dim::hidden},
     kKeepF32},
    {&TrunkW::audio_out_bias, {"final_layer.audio_out.bias", "audio_proj_out.bias"}, {Dim::audio_row}, kKeepF32},
};
static_assert(std::size(kTrunk) * sizeof(const TensorInfo*) == sizeof(TrunkW), "a field has no row");

// Blocks of the trunk and of the token refiner; Names decides whether q, k and v are one tensor or three.
inline constexpr Row<BlockW> kBlock[] = {
    {&BlockW::norm1, {"norm1.weight"}, {Dim::hidden}, kKeepF32},
    {&BlockW::norm2, {"norm2.weight"}, {Dim::hidden}, kKeepF32},
    {&BlockW::q_norm, {"attn.q_norm.weight", "attn.norm_q.weight"}, {Dim::head_dim}, kKeepF32},
    {&BlockW::k_norm, {"attn.k_norm.weight", "attn.norm_k.weight"}, {Dim::head_dim}, kKeepF32},
    {&BlockW::qkv, {"attn.qkv_proj.weight", kNone}, {Dim::inner3, Dim::hidden}, kQuantise | kAdapterTarget},
    {&BlockW::q, {kNone, "attn.to_q.weight"}, {Dim::inner, Dim::hidden}, kQuantise | kAdapterTarget},
    {&BlockW::k, {kNone, "attn.to_k.weight"}, {Dim::inner, Dim::hidden}, kQuantise | kAdapterTarget},
    {&BlockW::v, {kNone, "attn.to_v.weight"}, {Dim::inner, Dim::hidden}, kQuantise | kAdapterTarget},
    {&BlockW::out,
     {"attn.out_proj.weight", "attn.to_out.0.weight"},
     {Dim::hidden, Dim::inner},
     kQuantise | kAdapterTarget},
    {&BlockW::fc1, {"mlp.fc1.weight", "ff.net.0.proj.weight"}, {Dim::ffn2, Dim::hidden}, kQuantise | kAdapterTarget},
    {&BlockW::fc2, {"mlp.fc2.weight", "ff.net.2.weight"}, {Dim::hidden, Dim::ffn}, kQuantise | kAdapterTarget},
};
static_assert(std::size(kBlock) * sizeof(const TensorInfo*) == sizeof(BlockW), "a field has no row");

// Of trunk blocks only. cortiq's container gives every block a curve of its own.
inline constexpr Row<AdalnW> kAdaln[] = {
    {&AdalnW::weight,
     {"adaln_proj.linear.weight", kAsComfy, "adaln.weight"},
     {Dim::block_adaln, Dim::any},
     kAdapterTarget},
    {&AdalnW::bias, {"adaln_proj.linear.bias", kAsComfy, "adaln.bias"}, {Dim::block_adaln}, kKeepF32},
    {&AdalnW::table, {kNone, kNone, "adaln.table"}, {Dim::any, Dim::any}, kKeepF32 | kMayBeAbsent},
};
static_assert(std::size(kAdaln) * sizeof(const TensorInfo*) == sizeof(AdalnW), "a field has no row");

struct Prefixes {
  const char *block, *refiner;  // followed by the number and a dot
};
inline constexpr Prefixes kPrefixes[] = {
    {"blocks.", "token_refiner.blocks."},
    {"transformer_blocks.", "token_refiner.refiner_blocks."},
    {"blocks.", "token_refiner.blocks."},
};

// ---- what the forward is built from ----

// One AdaLN projection: rows are modality x chunk x hidden (blocks) or chunk x hidden (final layer).
struct AdalnSource {
  MatrixSource weight;
  std::vector<float> bias;
  std::vector<float> table;  // [points, rank] of its own curve; empty = the shared one, or none
};

struct BlockSource {
  MatrixSource qkv;       // [3 inner, hidden], rows q, k, v, head-major each
  MatrixSource out, fc2;  // [hidden, inner], [hidden, ffn]
  MatrixSource fc1;       // [2 ffn, hidden], rows gate, value
  std::vector<float> norm1, norm2, q_norm, k_norm;
  AdalnSource adaln;  // empty in the refiner
};

struct Source {
  DitConfig config;
  std::string origin;
  MatrixSource video_in, audio_in, text_in, video_out, audio_out, time1, time2;
  std::vector<float> video_in_bias, audio_in_bias, text_in_bias, video_out_bias, audio_out_bias, time1_bias, time2_bias;
  std::vector<float> curve;     // [points, rank] shared curve, or empty
  std::vector<float> inv_freq;  // [rope]
  std::vector<float> refiner_norm, final_norm;
  AdalnSource final_adaln;
  std::vector<BlockSource> blocks, refiner;
};

// Where the tensors of the trunk go; those of AdaLN have places of their own.
struct TrunkSlot {
  const TensorInfo* TrunkW::*field;
  MatrixSource Source::*matrix;        // or
  std::vector<float> Source::*values;  // the one that is not null
};
inline constexpr TrunkSlot kTrunkSlots[] = {
    {&TrunkW::video_in, &Source::video_in, nullptr},
    {&TrunkW::audio_in, &Source::audio_in, nullptr},
    {&TrunkW::text_in, &Source::text_in, nullptr},
    {&TrunkW::video_out, &Source::video_out, nullptr},
    {&TrunkW::audio_out, &Source::audio_out, nullptr},
    {&TrunkW::time1, &Source::time1, nullptr},
    {&TrunkW::time2, &Source::time2, nullptr},
    {&TrunkW::video_in_bias, nullptr, &Source::video_in_bias},
    {&TrunkW::audio_in_bias, nullptr, &Source::audio_in_bias},
    {&TrunkW::text_in_bias, nullptr, &Source::text_in_bias},
    {&TrunkW::video_out_bias, nullptr, &Source::video_out_bias},
    {&TrunkW::audio_out_bias, nullptr, &Source::audio_out_bias},
    {&TrunkW::time1_bias, nullptr, &Source::time1_bias},
    {&TrunkW::time2_bias, nullptr, &Source::time2_bias},
    {&TrunkW::curve, nullptr, &Source::curve},
    {&TrunkW::rope, nullptr, &Source::inv_freq},
    {&TrunkW::refiner_norm, nullptr, &Source::refiner_norm},
    {&TrunkW::final_norm, nullptr, &Source::final_norm},
};

// Error(data) that lists everything missing, unexpected or mis-shaped; multi-head ("PDD") files are refused by name.
Source read_source(const Component& component, Log& log);

// What a block is built from, by ComfyUI's names without the block's prefix; q, k and v as one matrix.
struct BlockParameter {
  std::string name;
  Format format = Format::f32;
  std::vector<int64_t> dims;
};
std::vector<BlockParameter> parameters_of(const BlockSource& block);

// Rows [first, first + count) of a matrix.
MatrixSource rows_of(const MatrixSource& matrix, int64_t first, int64_t count);

}  // namespace h3::dit
