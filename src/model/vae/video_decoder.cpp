#include "model/vae/video_decoder.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/context.h"
#include "base/error.h"
#include "codec/scalar.h"
#include "ops/values.h"
#include "quant/float8_rows.h"

namespace h3 {
namespace {

// Tiles per forward at most; a decode shares its tiles out evenly. So 1344x768 takes two forwards of 14 and 960x544 one
// of 15: matmuls of the largest cards work on 256 rows by 256 outputs per pair of multiprocessors, and with that many
// tiles of 1797 rows the last round of those is nearly full (12.0 rounds for 14, 3.5 for four).
constexpr int kTilesOnCard = 16;

// What the branches are stored as. Block formats compute from bf16 on the host's kernels and from f16 on accelerators.
DType branch_type(Compute compute, bool on_host) {
  switch (compute) {
    case Compute::f32: return DType::f32;
    case Compute::bf16: return DType::bf16;
    case Compute::f16: return DType::f16;
    case Compute::int8:
    case Compute::packed: break;
  }
  return on_host ? DType::bf16 : DType::f16;
}

MatrixSource whole(const char* name, const StoredMatrix& matrix) {
  MatrixSource source;
  source.name = name;
  source.append(matrix, 0, matrix.rows);
  return source;
}

// Rows [q of all heads; k; v]. The original order is head by head: head_dim rows of q, of k, of v (spec vae 2.1).
int64_t qkv_row(int64_t plane, int64_t head, int64_t head_dim) { return (3 * head + plane) * head_dim; }

MatrixSource fused_qkv(const WeightBinder& binder, const VideoVaeConfig& c, const DecoderBlockTensors& t) {
  MatrixSource source;
  source.name = "qkv";
  if (!c.original) {
    for (const TensorInfo* part : {t.q, t.k, t.v}) source.append(binder.matrix(part), 0, c.inner());
    return source;
  }
  const StoredMatrix matrix = binder.matrix(t.qkv);
  for (int64_t plane = 0; plane < 3; ++plane) {
    for (int64_t head = 0; head < c.heads; ++head) {
      source.append(matrix, qkv_row(plane, head, c.head_dim), c.head_dim);
    }
  }
  return source;
}

std::vector<float> fused_qkv_bias(const WeightBinder& binder, const VideoVaeConfig& c, const DecoderBlockTensors& t) {
  std::vector<float> bias;
  if (!c.original) {
    for (const TensorInfo* part : {t.q_bias, t.k_bias, t.v_bias}) {
      const std::vector<float> values = binder.values(part);
      bias.insert(bias.end(), values.begin(), values.end());
    }
    return bias;
  }
  const std::vector<float> values = binder.values(t.qkv_bias);
  for (int64_t plane = 0; plane < 3; ++plane) {
    for (int64_t head = 0; head < c.heads; ++head) {
      const auto first = values.begin() + qkv_row(plane, head, c.head_dim);
      bias.insert(bias.end(), first, first + c.head_dim);
    }
  }
  return bias;
}

// Rows [gate; up]; diffusers stores [up; gate].
MatrixSource gate_up(const WeightBinder& binder, const VideoVaeConfig& c, const DecoderBlockTensors& t) {
  MatrixSource source;
  source.name = "w1";
  const StoredMatrix matrix = binder.matrix(t.w1);
  source.append(matrix, c.original ? 0 : c.ffn, c.ffn);
  source.append(matrix, c.original ? c.ffn : 0, c.ffn);
  return source;
}

std::vector<float> gate_up_bias(const WeightBinder& binder, const VideoVaeConfig& c, const DecoderBlockTensors& t) {
  std::vector<float> bias = binder.values(t.w1_bias);
  if (!c.original) std::rotate(bias.begin(), bias.begin() + c.ffn, bias.end());
  return bias;
}

// Rows (t, y, x) of [t*h*w, C] seen as [C, t, h, w].
View channels_first(const View& rows, int64_t t, int64_t h, int64_t w) {
  View view = rows;
  const int64_t row = rows.stride[0];
  view.rank = 4;
  view.dim = {rows.dim[1], t, h, w};
  view.stride = {rows.stride[1], h * w * row, w * row, row};
  return view;
}

// [n, ...] as [count, n, ...], the same rows for each.
View repeated(const View& one, int64_t count) {
  View view = one;
  view.rank = one.rank + 1;
  for (int axis = one.rank; axis > 0; --axis) {
    view.dim[axis] = one.dim[axis - 1];
    view.stride[axis] = one.stride[axis - 1];
  }
  view.dim[0] = count;
  view.stride[0] = 0;
  return view;
}

}  // namespace

struct VideoDecoder::Run {
  Plan plan;
  const Control& control;
  const float* latent = nullptr;  // [C, frames, h, w] on the host
  int frames = 0;
  bool denormalise = false;
  Workspace memory;
  Tensor cos, sin;            // [batch * rows, pairs]
  std::vector<float> window;  // [C, window, h, w] on the host
  View x, raw, head, carry, next_carry;
};

VideoDecoder::VideoDecoder(Ops& ops, const WeightBinder& binder, const VideoVaeConfig& config,
                           const VideoVaeTensors& tensors, const VideoVaeOptions& options)
    : ops_(ops),
      config_(config),
      type_(branch_type(options.compute, ops.device().is_host())),
      compute_(options.compute),
      float8_(options.float8),
      tiling_(options.tiling),
      tile_batch_(options.tile_batch > 0 ? options.tile_batch : (ops.device().is_host() ? 1 : kTilesOnCard)),
      observe_(options.observe) {
  const DecoderTensors& t = tensors.decoder;
  const auto upload = [&](const TensorInfo* info, int64_t count) {
    return upload_f32(ops_.device(), binder.values(info).data(), {count}, DType::f32, "video decoder");
  };
  // 24 inputs: nothing to gain below f32, and the residual stream starts here.
  post_quant_ = make_linear("post_quant_conv", whole("post_quant_conv", binder.matrix(t.post_quant)),
                            binder.values(t.post_quant_bias), Compute::f32);
  proj_in_ =
      make_linear("proj_in", whole("proj_in", binder.matrix(t.proj_in)), binder.values(t.proj_in_bias), Compute::f32);
  const bool quantised = compute_ == Compute::int8 || compute_ == Compute::packed;
  const Compute out_compute = !quantised ? compute_ : (type_ == DType::f16 ? Compute::f16 : Compute::bf16);
  proj_out_ = make_linear("proj_out", whole("proj_out", binder.matrix(t.proj_out)), binder.values(t.proj_out_bias),
                          out_compute);
  norm_out_ = upload(t.norm_out, config_.hidden);
  norm_out_bias_ = upload(t.norm_out_bias, config_.hidden);
  std::vector<float> suffix = binder.values(t.registers);
  suffix.resize(static_cast<size_t>((config_.registers + 1) * config_.hidden), 0.0f);
  suffix_ =
      upload_f32(ops_.device(), suffix.data(), {config_.registers + 1, config_.hidden}, DType::f32, "video decoder");
  const int overlap = config_.clip.frame_overlap();
  std::vector<float> fade;
  for (int k = 0; k < overlap; ++k) {
    const float current = static_cast<float>(k) / static_cast<float>(overlap);
    fade.insert(fade.end(), {1.0f - current, current});
  }
  fade_ = upload_f32(ops_.device(), fade.data(), {overlap, 2}, DType::f32, "video decoder");
  weight_bytes_ = post_quant_->bytes + proj_in_->bytes + proj_out_->bytes + suffix_.view.bytes() + 8 * config_.hidden;
  for (int64_t i = 0; i < config_.layers; ++i) {
    blocks_.push_back(make_block(binder, tensors.blocks[i], i));
    const Block& block = blocks_.back();
    weight_bytes_ += block.qkv->bytes + block.out->bytes + block.w1->bytes + block.w2->bytes + 16 * config_.hidden;
  }
}

std::unique_ptr<Linear> VideoDecoder::make_linear(const char* name, MatrixSource weight, std::vector<float> bias,
                                                  Compute compute) const {
  const int64_t edge = tiling_.tile / config_.ratio;
  LinearSpec spec;
  spec.label = std::string("video_vae.decoder.") + name;
  spec.weight = std::move(weight);
  spec.bias = std::move(bias);
  // As autocast does (spec vae 10); a bias that the type of the result holds can be added by the matmul itself.
  for (float& b : spec.bias) {
    if (compute == Compute::f16 || compute == Compute::packed)
      b = f16_to_f32(f32_to_f16(std::clamp(b, -65504.0f, 65504.0f)));
    if (compute == Compute::bf16) b = bf16_to_f32(f32_to_bf16(b));
  }
  spec.compute = compute;
  spec.max_rows = tile_batch_ * (config_.clip.window() * edge * edge + config_.registers + 1);
  return ops_.make_linear(std::move(spec));
}

VideoDecoder::Block VideoDecoder::make_block(const WeightBinder& binder, const DecoderBlockTensors& t,
                                             int64_t index) const {
  const auto upload = [&](const TensorInfo* info) {
    return upload_f32(ops_.device(), binder.values(info).data(), {config_.hidden}, DType::f32, "video decoder");
  };
  const std::string label = "blocks." + std::to_string(index) + ".";
  const auto linear = [&](const char* name, MatrixSource weight, std::vector<float> bias) {
    if (float8_) weight = float8_rows(std::move(weight), ops_.context().pool, ops_.reads_weights());
    return make_linear((label + name).c_str(), std::move(weight), std::move(bias), compute_);
  };
  Block block;
  block.norm1 = upload(t.norm1);
  block.norm2 = upload(t.norm2);
  block.scale1 = upload(t.scale1);
  block.scale2 = upload(t.scale2);
  block.qkv = linear("qkv", fused_qkv(binder, config_, t), fused_qkv_bias(binder, config_, t));
  block.out = linear("out", whole("out", binder.matrix(t.out)), binder.values(t.out_bias));
  block.w1 = linear("w1", gate_up(binder, config_, t), gate_up_bias(binder, config_, t));
  block.w2 = linear("w2", whole("w2", binder.matrix(t.w2)), binder.values(t.w2_bias));
  return block;
}

VideoDecoder::Plan VideoDecoder::make_plan(int frames, int height, int width) const {
  const int ratio = config_.ratio;
  Plan p;
  p.schedule = clip_schedule(frames, config_.clip);
  p.ys = tile_axis(height * ratio, tiling_.tile, tiling_.overlap, ratio);
  p.xs = tile_axis(width * ratio, tiling_.tile, tiling_.overlap, ratio);
  p.latent_h = height;
  p.latent_w = width;
  p.t = config_.clip.window();
  p.h = p.ys.lengths[0] / ratio;
  p.w = p.xs.lengths[0] / ratio;
  p.tokens = p.t * p.h * p.w;
  p.rows = p.tokens + config_.registers + 1;
  const int forwards = (p.tiles() + tile_batch_ - 1) / tile_batch_;
  p.batch = (p.tiles() + forwards - 1) / forwards;  // even shares
  // A tile is blended with the one before it and with the one above, xs.count() tiles ago. Batches are contiguous.
  const int back = p.ys.count() > 1 ? p.xs.count() : (p.xs.count() > 1 ? 1 : 0);
  const int batches = std::min((back + p.batch - 1) / p.batch + 1, (p.tiles() + p.batch - 1) / p.batch);
  p.ring = batches * p.batch;

  const int64_t rows = p.batch * p.rows, hidden = config_.hidden, inner = config_.inner();
  const int64_t pixel_h = static_cast<int64_t>(height) * ratio, pixel_w = static_cast<int64_t>(width) * ratio;
  // Calls 1 to 8 are those of one block, 10 the end of a forward; the rest lives as long as the request.
  constexpr int kAll = 11;
  const int overlap = config_.clip.frame_overlap();
  p.memory = plan_workspace({
      {"window", DType::f32, {config_.latent, p.t, height, width}, 0, kAll},
      {"tokens", DType::f32, {rows, config_.latent}, 0, kAll},
      {"mixed", DType::f32, {rows, config_.latent}, 0, kAll},
      {"x", DType::f32, {rows, hidden}, 0, kAll},
      {"raw", DType::f32, {p.ring * p.rows, config_.patch()}, 0, kAll},
      {"head", DType::f32, {config_.pixels, config_.clip.clip, pixel_h, pixel_w}, 0, kAll},
      {"carry0", DType::f32, {config_.pixels, overlap, pixel_h, pixel_w}, 0, kAll},
      {"carry1", DType::f32, {config_.pixels, overlap, pixel_h, pixel_w}, 0, kAll},
      {"h1", type_, {rows, hidden}, 1, 2},
      {"qkv", type_, {rows, 3 * inner}, 2, 3},
      {"heads", type_, {rows, inner}, 3, 4},
      {"y1", type_, {rows, hidden}, 4, 4},
      {"h2", type_, {rows, hidden}, 6, 7},
      {"ffn", type_, {rows, 2 * config_.ffn}, 7, 8},
      {"y2", type_, {rows, hidden}, 8, 8},
      {"out", type_, {rows, hidden}, 10, 10},
  });
  return p;
}

int64_t VideoDecoder::scratch_bytes(int frames, int height, int width) const {
  const Plan plan = make_plan(frames, height, width);
  const int64_t tables = 2 * 4 * plan.batch * plan.rows * 3 * config_.rope_per_axis();
  return plan.memory.bytes + tables;
}

void VideoDecoder::observe(const std::string& stage, const View& value) const {
  if (observe_) observe_(stage, value);
}

void VideoDecoder::upload_window(Run& run, int clip) const {
  if (!holds_values(ops_.device())) return;
  const int64_t frame = run.plan.latent_h * run.plan.latent_w;
  float* out = run.window.data();
  for (int64_t c = 0; c < config_.latent; ++c) {
    for (int64_t k = 0; k < run.plan.t; ++k, out += frame) {
      const int64_t t = std::min<int64_t>(clip * config_.clip.tokens() + k, run.frames - 1);
      const float* in = run.latent + (c * run.frames + t) * frame;
      if (!run.denormalise) {
        std::copy(in, in + frame, out);
        continue;
      }
      for (int64_t i = 0; i < frame; ++i) out[i] = in[i] * config_.std[c] + config_.mean[c];
    }
  }
  ops_.device().upload(run.window.data(), run.memory["window"]);
}

// Tiles [first, first + count) of the uploaded window into their raw slots.
void VideoDecoder::forward(Run& run, int first, int count) {
  const Plan& p = run.plan;
  const int64_t rows = count * p.rows;
  const View window = run.memory["window"], tokens = run.memory["tokens"].slice(0, 0, rows);
  for (int i = 0; i < count; ++i) {
    const int64_t y = p.ys.starts[(first + i) / p.xs.count()] / config_.ratio;
    const int64_t x = p.xs.starts[(first + i) % p.xs.count()] / config_.ratio;
    ops_.copy(window.slice(2, y, p.h).slice(3, x, p.w),
              channels_first(tokens.slice(0, i * p.rows, p.tokens), p.t, p.h, p.w));
  }
  const View mixed = run.memory["mixed"].slice(0, 0, rows), x = run.x.slice(0, 0, rows);
  ops_.linear(*post_quant_, tokens, mixed);
  observe("post_quant_conv", mixed);
  ops_.linear(*proj_in_, mixed, x);
  observe("proj_in", x);
  ops_.copy(repeated(suffix_, count), x.split(0, p.rows).slice(1, p.tokens, config_.registers + 1));
  observe("block0_in", x);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    run_block(run, blocks_[i], rows, i);
    run.control.check();
  }
  run.memory.enter(10);
  const View h = run.memory["out"].slice(0, 0, rows);
  ops_.layer_norm(x, norm_out_, norm_out_bias_, config_.norm_eps, h);
  observe("norm_out", h);
  const View raw = run.raw.slice(0, first % p.ring * p.rows, rows);
  ops_.linear(*proj_out_, h, raw);
  observe("proj_out", raw);
}

void VideoDecoder::run_block(Run& run, const Block& block, int64_t rows, size_t index) {
  const View x = run.x.slice(0, 0, rows);
  attention_branch(run, block, rows, index);
  run.memory.enter(6);
  const View h = run.memory["h2"].slice(0, 0, rows);
  ops_.rms_norm(x, block.norm2, config_.norm_eps, NormRounding::once, h);
  run.memory.enter(7);
  const View ffn = run.memory["ffn"].slice(0, 0, rows), gate = ffn.slice(1, 0, config_.ffn);
  ops_.linear_swiglu(*block.w1, h, ffn, gate);
  run.memory.enter(8);
  add_branch(*block.w2, gate, run.memory["y2"].slice(0, 0, rows), block.scale2, x, index == 0 ? "b0.ff" : nullptr);
  if (observe_) observe("block." + std::to_string(index), x);
}

// x += scale * branch; `stage`: under which name the branch is observed.
void VideoDecoder::add_branch(const Linear& weight, const View& in, const View& y, const Tensor& scale, const View& x,
                              const char* stage) {
  if (!observe_ || stage == nullptr) return ops_.linear_scaled_add(weight, in, y, scale, x);
  ops_.linear(weight, in, y);
  observe(stage, y);
  ops_.scaled_add(x, y, scale);
}

void VideoDecoder::attention_branch(Run& run, const Block& block, int64_t rows, size_t index) {
  const int64_t inner = config_.inner(), dim = config_.head_dim;
  run.memory.enter(1);
  const View x = run.x.slice(0, 0, rows), h = run.memory["h1"].slice(0, 0, rows);
  ops_.rms_norm(x, block.norm1, config_.norm_eps, NormRounding::once, h);
  if (index == 0) observe("b0.norm1", h);
  run.memory.enter(2);
  const View qkv = run.memory["qkv"].slice(0, 0, rows);
  // q and k lie side by side and are normed and turned alike.
  const Ops::HeadNorm norm{.enabled = true, .eps = config_.norm_eps};
  const Rope rope{run.cos.view.slice(0, 0, rows), run.sin.view.slice(0, 0, rows), RopeRounding::once};
  ops_.linear_head_norm_rope(*block.qkv, h, 2 * inner / dim, dim, norm, rope, qkv);
  run.memory.enter(3);
  const auto heads = [&](const View& matrix) { return matrix.split(0, run.plan.rows).split(2, dim); };
  const View out = run.memory["heads"].slice(0, 0, rows);
  AttentionArgs args;
  args.q = heads(qkv.slice(1, 0, inner));
  args.k = heads(qkv.slice(1, inner, inner));
  args.v = heads(qkv.slice(1, 2 * inner, inner));
  args.out = heads(out);
  args.scale = 1.0f / std::sqrt(static_cast<float>(dim));
  ops_.attention(args);
  run.memory.enter(4);
  add_branch(*block.out, out, run.memory["y1"].slice(0, 0, rows), block.scale1, x, index == 0 ? "b0.attn" : nullptr);
}

// Frames of the window: pre_padding dropped, `clip` kept, pre_padding dropped, the cross-fade tail kept (spec vae 5).
void VideoDecoder::blend(Run& run, int tile) {
  const Plan& p = run.plan;
  const int columns = p.xs.count(), i = tile / columns, j = tile % columns;
  const auto raw = [&](int index) { return run.raw.slice(0, index % p.ring * p.rows, p.tokens); };
  TileBlend args;
  args.tile = raw(tile);
  if (i > 0) args.up = raw(tile - columns);
  if (j > 0) args.left = raw(tile - 1);
  args.t = p.t;
  args.h = p.h;
  args.w = p.w;
  args.pt = config_.clip.ratio;
  args.p = config_.ratio;
  args.overlap_up = p.ys.overlap_before(i);
  args.overlap_left = p.xs.overlap_before(j);
  const auto owned = [&](const View& canvas) {
    return canvas.slice(2, p.ys.starts[i], p.ys.end(i) - p.ys.starts[i])
        .slice(3, p.xs.starts[j], p.xs.end(j) - p.xs.starts[j]);
  };
  args.first_frame = config_.clip.pre_padding();
  args.out = owned(run.head);
  ops_.blend_tile(args);
  args.first_frame = p.t * config_.clip.ratio - config_.clip.frame_overlap();
  args.out = owned(run.next_carry);
  ops_.blend_tile(args);
}

void VideoDecoder::decode_clip(Run& run, int clip) {
  const Plan& p = run.plan;
  upload_window(run, clip);
  const int64_t total = static_cast<int64_t>(p.schedule.clips) * p.tiles();
  for (int first = 0; first < p.tiles(); first += p.batch) {
    const int count = std::min(p.batch, p.tiles() - first);
    forward(run, first, count);
    for (int tile = first; tile < first + count; ++tile) blend(run, tile);
    ops_.sync();
    run.control.progress("decode video", static_cast<int64_t>(clip) * p.tiles() + first + count, total);
  }
  if (clip == 0) return;
  for (int k = 0; k < config_.clip.frame_overlap(); ++k) {
    const View now = run.head.select(1, k);
    ops_.lincomb(fade_.view.select(0, k), run.carry.select(1, k), now, now);
  }
}

void VideoDecoder::decode(const float* latent, int frames, int height, int width, bool denormalise,
                          const Control& control, const Emit& emit) {
  Run run{.plan = make_plan(frames, height, width),
          .control = control,
          .latent = latent,
          .frames = frames,
          .denormalise = denormalise};
  const Plan& p = run.plan;
  control.progress("decode video", 0, static_cast<int64_t>(p.schedule.clips) * p.tiles());
  run.memory = Workspace(ops_.device(), p.memory, "video decoder");
  run.memory.enter(0);
  RotaryTable table = rotary_table(p.t, p.h, p.w, config_.registers + 1, config_.rope_theta, config_.rope_per_axis());
  const size_t one = table.cos.size();
  for (std::vector<float>* values : {&table.cos, &table.sin}) {
    values->resize(one * p.batch);
    for (int i = 1; i < p.batch; ++i) std::copy_n(values->begin(), one, values->begin() + i * one);
  }
  run.cos = upload_f32(ops_.device(), table.cos.data(), {p.batch * p.rows, table.pairs}, DType::f32, "video rope");
  run.sin = upload_f32(ops_.device(), table.sin.data(), {p.batch * p.rows, table.pairs}, DType::f32, "video rope");
  if (holds_values(ops_.device())) {
    run.window.resize(static_cast<size_t>(config_.latent * p.t * p.latent_h * p.latent_w));
  }
  run.x = run.memory["x"];
  run.raw = run.memory["raw"];
  run.head = run.memory["head"];
  run.carry = run.memory["carry0"];
  run.next_carry = run.memory["carry1"];
  ops_.reserve(p.batch * p.rows, config_.inner());
  ops_.fill(run.memory["tokens"], 0.0f);  // the suffix rows pass through proj_in before they are replaced

  const int clip = config_.clip.clip;
  for (int i = 0; i < p.schedule.clips; ++i) {
    decode_clip(run, i);
    const int count = std::min(clip, p.schedule.frames - i * clip);
    if (count > 0) emit(i * clip, run.head.slice(1, 0, count));
    std::swap(run.carry, run.next_carry);
  }
  const int rest = p.schedule.frames - p.schedule.clips * clip;
  if (rest > 0) emit(p.schedule.clips * clip, run.carry.slice(1, 0, rest));
}

}  // namespace h3
