#include "model/text/vision.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/workspace.h"

namespace h3::text {
namespace {

constexpr int64_t kCells = kMerge * kMerge;

// Calls of the workspace table, in order; 2..5 repeat per block.
enum Call : int { kStart, kPlace, kAttention, kAfterAttention, kMlp, kMergeCall };

WorkspacePlan plan_tower(const VisionDims& dims, DType type, int64_t rows, int64_t frame_rows) {
  const int64_t d = dims.hidden, chunk = std::min(rows, kRowChunk), merged = std::min(rows / kCells, kRowChunk);
  return plan_workspace({
      {"h", type, {rows, d}, kStart, kMergeCall},
      {"cos", DType::f32, {frame_rows, dims.head_dim / 2}, kStart, kMergeCall},
      {"sin", DType::f32, {frame_rows, dims.head_dim / 2}, kStart, kMergeCall},
      {"pixels", DType::f32, {chunk, kPatchRow}, kStart, kStart},
      {"place_f32", DType::f32, {frame_rows, d}, kPlace, kPlace},
      {"place", type, {frame_rows, d}, kPlace, kPlace},
      {"normed", type, {rows, d}, kAttention, kMergeCall},
      {"qkv", type, {rows, 3 * d}, kAttention, kAttention},
      {"branch", type, {rows, d}, kAfterAttention, kMlp},
      {"mlp", type, {chunk, dims.ffn}, kMlp, kMlp},
      {"joined", type, {merged, kCells * d}, kMergeCall, kMergeCall},
  });
}

struct AxisPoint {
  int64_t low, high;
  float fraction;
};

// torch.linspace(0, side - 1, n) in f32, read bilinearly.
std::vector<AxisPoint> axis_points(int64_t n, int64_t side) {
  const float last = static_cast<float>(side - 1);
  const float step = last / static_cast<float>(n - 1);
  std::vector<AxisPoint> out;
  for (int64_t i = 0; i < n; ++i) {
    const float value = i < n / 2 ? step * static_cast<float>(i) : last - step * static_cast<float>(n - 1 - i);
    const int64_t low = static_cast<int64_t>(value);
    out.push_back({low, std::min(low + 1, side - 1), value - static_cast<float>(low)});
  }
  return out;
}

// Calls visit(row, y, x) for every patch of one frame in the block order of the patch rows.
template <typename Visit>
void for_each_patch(int64_t grid_h, int64_t grid_w, const Visit& visit) {
  int64_t row = 0;
  for (int64_t by = 0; by < grid_h; by += kMerge) {
    for (int64_t bx = 0; bx < grid_w; bx += kMerge) {
      for (int64_t cell = 0; cell < kCells; ++cell) visit(row++, by + cell / kMerge, bx + cell % kMerge);
    }
  }
}

// Angles of one frame: the first half of the pairs turns with y, the second with x. [rows, head_dim / 2]
void rotary_tables(const VisionDims& dims, int64_t grid_h, int64_t grid_w, std::vector<float>& cos,
                   std::vector<float>& sin) {
  const int64_t pairs = dims.head_dim / 2, per_axis = pairs / 2;
  std::vector<float> inverse(static_cast<size_t>(per_axis));
  for (int64_t j = 0; j < per_axis; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(pairs);
    inverse[static_cast<size_t>(j)] = 1.0f / static_cast<float>(std::pow(dims.theta, static_cast<double>(exponent)));
  }
  cos.resize(static_cast<size_t>(grid_h * grid_w * pairs));
  sin.resize(cos.size());
  for_each_patch(grid_h, grid_w, [&](int64_t row, int64_t y, int64_t x) {
    for (int64_t j = 0; j < pairs; ++j) {
      const float position = static_cast<float>(j < per_axis ? y : x);
      const float angle = position * inverse[static_cast<size_t>(j % per_axis)];
      cos[static_cast<size_t>(row * pairs + j)] = static_cast<float>(std::cos(static_cast<double>(angle)));
      sin[static_cast<size_t>(row * pairs + j)] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  });
}

}  // namespace

BoundVision bind_vision(WeightBinder& binder, const Names& names, const VisionDims& dims) {
  BoundVision bound{};
  const Lengths lengths{.vision = &dims, .norm = dims.hidden};
  const Lengths joined{.vision = &dims, .norm = kCells * dims.hidden};
  bind_rows(binder, names.vision, names.compact ? kCompactStem : kStem, bound.stem, lengths);
  bound.blocks.resize(static_cast<size_t>(dims.depth));
  for (size_t i = 0; i < bound.blocks.size(); ++i) {
    bind_rows(binder, names.vision + "blocks." + std::to_string(i) + ".", kBlock, bound.blocks[i], lengths);
  }
  bind_rows(binder, names.vision + "merger.", kMerger, bound.merger, lengths);
  bound.deepstack.resize(dims.taps.size());
  for (size_t k = 0; k < bound.deepstack.size(); ++k) {
    bind_rows(binder, names.deepstack() + std::to_string(k) + ".", kMerger, bound.deepstack[k], joined);
  }
  return bound;
}

// One picture or video inside the workspace.
struct VisionTower::Frame {
  Workspace& work;
  int64_t rows, frame_rows, frames;
  View h, cos, sin, pixels, place_f32, place, normed, qkv, branch, mlp, joined;

  Frame(Workspace& workspace, const VisionInput& input)
      : work(workspace), rows(input.rows()), frame_rows(input.grid_h * input.grid_w), frames(input.grid_t) {
    const auto rows_of = [this](const char* name, int64_t count) { return work[name].slice(0, 0, count); };
    h = rows_of("h", rows);
    cos = rows_of("cos", frame_rows);
    sin = rows_of("sin", frame_rows);
    pixels = work["pixels"];
    place_f32 = rows_of("place_f32", frame_rows);
    place = rows_of("place", frame_rows);
    normed = rows_of("normed", rows);
    qkv = rows_of("qkv", rows);
    branch = rows_of("branch", rows);
    mlp = work["mlp"];
    joined = work["joined"];
  }
  View frame(const View& view, int64_t t) const { return view.slice(0, t * frame_rows, frame_rows); }
};

VisionTower::VisionTower(const Materials& materials, const VisionDims& dims, const BoundVision& bound)
    : ops_(materials.ops), dims_(dims), type_(activation_type(materials.compute)) {
  patch_ = materials.matrix("vis.patch_embed", {bound.stem.patch}, bound.stem.patch_bias);
  position_table_ = materials.binder.values(bound.stem.positions);
  for (size_t i = 0; i < bound.blocks.size(); ++i) {
    const BlockTensors& t = bound.blocks[i];
    const std::string label = "vis.blocks." + std::to_string(i);
    Block block;
    block.norm1 = materials.vector(t.norm1);
    block.norm1_bias = materials.vector(t.norm1_bias);
    block.qkv = materials.matrix(label + ".attn.qkv", {t.qkv}, t.qkv_bias);
    block.out = materials.matrix(label + ".attn.proj", {t.out}, t.out_bias);
    block.norm2 = materials.vector(t.norm2);
    block.norm2_bias = materials.vector(t.norm2_bias);
    block.fc1 = materials.matrix(label + ".mlp.fc1", {t.fc1}, t.fc1_bias);
    block.fc2 = materials.matrix(label + ".mlp.fc2", {t.fc2}, t.fc2_bias);
    blocks_.push_back(std::move(block));
  }
  merger_ = make_merger(materials, "vis.merger", bound.merger);
  for (size_t k = 0; k < bound.deepstack.size(); ++k) {
    deepstack_.push_back(make_merger(materials, "vis.deepstack." + std::to_string(k), bound.deepstack[k]));
  }
}

VisionTower::Merger VisionTower::make_merger(const Materials& materials, const std::string& label,
                                             const MergerTensors& tensors) const {
  Merger merger;
  merger.norm = materials.vector(tensors.norm);
  merger.norm_bias = materials.vector(tensors.norm_bias);
  merger.fc1 = materials.matrix(label + ".fc1", {tensors.fc1}, tensors.fc1_bias);
  merger.fc2 = materials.matrix(label + ".fc2", {tensors.fc2}, tensors.fc2_bias);
  return merger;
}

// The position table read at the picture's own grid: weights, products and the four-term sum in f32, in the order of
// the reference (spec conditioner 5.4). [grid_h * grid_w, D] in block order.
std::vector<float> VisionTower::positions(int64_t grid_h, int64_t grid_w) const {
  const int64_t d = dims_.hidden;
  const std::vector<AxisPoint> ys = axis_points(grid_h, dims_.side), xs = axis_points(grid_w, dims_.side);
  std::vector<float> out(static_cast<size_t>(grid_h * grid_w * d));
  for_each_patch(grid_h, grid_w, [&](int64_t row, int64_t y, int64_t x) {
    const AxisPoint &v = ys[static_cast<size_t>(y)], &u = xs[static_cast<size_t>(x)];
    const float weight[4] = {(1 - v.fraction) * (1 - u.fraction), (1 - v.fraction) * u.fraction,
                             v.fraction * (1 - u.fraction), v.fraction * u.fraction};
    const int64_t corner[4] = {v.low * dims_.side + u.low, v.low * dims_.side + u.high, v.high * dims_.side + u.low,
                               v.high * dims_.side + u.high};
    float* dst = out.data() + row * d;
    for (int64_t c = 0; c < d; ++c) {
      float sum = position_table_[static_cast<size_t>(corner[0] * d + c)] * weight[0];
      for (int k = 1; k < 4; ++k) sum += position_table_[static_cast<size_t>(corner[k] * d + c)] * weight[k];
      dst[c] = sum;
    }
  });
  return out;
}

void VisionTower::embed(const VisionInput& input, const Frame& frame) const {
  float value_of[256];
  for (int i = 0; i < 256; ++i) value_of[i] = pixel_value(static_cast<uint8_t>(i));
  std::vector<float> stage(static_cast<size_t>(frame.pixels.elements()));
  for (int64_t begin = 0; begin < frame.rows; begin += kRowChunk) {
    const int64_t count = std::min(kRowChunk, frame.rows - begin);
    const uint8_t* src = input.patches.data() + begin * kPatchRow;
    for (int64_t i = 0; i < count * kPatchRow; ++i) stage[static_cast<size_t>(i)] = value_of[src[i]];
    const View pixels = frame.pixels.slice(0, 0, count);
    ops_.device().upload(stage.data(), pixels);
    ops_.linear(*patch_, pixels, frame.h.slice(0, begin, count));
  }
}

void VisionTower::run_block(const Block& block, const Frame& frame) const {
  const int64_t d = dims_.hidden;
  frame.work.enter(kAttention);
  ops_.layer_norm(frame.h, block.norm1, block.norm1_bias, dims_.eps, frame.normed);
  ops_.linear(*block.qkv, frame.normed, frame.qkv);
  const auto heads = [&](const View& view, int64_t part) {
    return view.slice(1, part * d, d).split(1, dims_.head_dim);
  };
  for (int64_t t = 0; t < frame.frames; ++t) {  // every frame turns by the same tables
    for (int64_t part = 0; part < 2; ++part) {
      ops_.head_norm_rope(heads(frame.frame(frame.qkv, t), part), {},
                          {.cos = frame.cos, .sin = frame.sin, .rounding = RopeRounding::once});
    }
  }
  // Attention stays inside a frame pair: the temporal index is the batch.
  ops_.attention({.q = heads(frame.qkv, 0).split(0, frame.frame_rows),
                  .k = heads(frame.qkv, 1).split(0, frame.frame_rows),
                  .v = heads(frame.qkv, 2).split(0, frame.frame_rows),
                  .out = frame.normed.split(1, dims_.head_dim).split(0, frame.frame_rows),
                  .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dims_.head_dim)))});
  frame.work.enter(kAfterAttention);
  ops_.linear(*block.out, frame.normed, frame.branch);
  ops_.add(frame.h, frame.branch, frame.h);
  frame.work.enter(kMlp);
  ops_.layer_norm(frame.h, block.norm2, block.norm2_bias, dims_.eps, frame.normed);
  for (int64_t begin = 0; begin < frame.rows; begin += kRowChunk) {
    const int64_t count = std::min(kRowChunk, frame.rows - begin);
    const View mlp = frame.mlp.slice(0, 0, count);
    ops_.linear(*block.fc1, frame.normed.slice(0, begin, count), mlp);
    ops_.gelu(mlp, Ops::Gelu::tanh, mlp);
    ops_.linear(*block.fc2, mlp, frame.branch.slice(0, begin, count));
  }
  ops_.add(frame.h, frame.branch, frame.h);
}

// out [rows / 4, out]. The mergers use the exact erf GELU, the blocks the tanh form.
void VisionTower::merge(const Merger& merger, const Frame& frame, const View& out) const {
  const int64_t d = dims_.hidden;
  const View joined = frame.normed.reshape({frame.rows / kCells, kCells * d});
  if (merger.norm.view.dim[0] == d) {
    ops_.layer_norm(frame.h, merger.norm, merger.norm_bias, dims_.eps, frame.normed);
  } else {
    ops_.layer_norm(frame.h.reshape({frame.rows / kCells, kCells * d}), merger.norm, merger.norm_bias, dims_.eps,
                    joined);
  }
  for (int64_t begin = 0; begin < joined.dim[0]; begin += kRowChunk) {
    const int64_t count = std::min(kRowChunk, joined.dim[0] - begin);
    const View wide = frame.joined.slice(0, 0, count);
    ops_.linear(*merger.fc1, joined.slice(0, begin, count), wide);
    ops_.gelu(wide, Ops::Gelu::erf, wide);
    ops_.linear(*merger.fc2, wide, out.slice(0, begin, count));
  }
}

void VisionTower::forward(const std::vector<VisionInput>& inputs, const View& features, const Control& control,
                          const TextProbe& probe) const {
  int64_t most_rows = 0, most_frame_rows = 0, steps = 0;
  for (const VisionInput& input : inputs) {
    most_rows = std::max(most_rows, input.rows());
    most_frame_rows = std::max(most_frame_rows, input.grid_h * input.grid_w);
    steps += dims_.depth;
  }
  Workspace work(ops_.device(), plan_tower(dims_, type_, most_rows, most_frame_rows), "vision tower workspace");
  ops_.reserve(most_rows, dims_.hidden);
  int64_t token = 0, step = 0;
  std::vector<float> cos, sin;
  for (size_t n = 0; n < inputs.size(); ++n) {
    const VisionInput& input = inputs[n];
    const Frame frame(work, input);
    const auto see = [&](const char* name, int64_t index, const View& view) {
      if (!probe) return;
      ops_.sync();
      probe(name, index, static_cast<int64_t>(n), view);
    };
    const auto level = [&](int64_t k) { return features.select(0, k).slice(0, token, input.tokens()); };

    work.enter(kStart);
    rotary_tables(dims_, input.grid_h, input.grid_w, cos, sin);
    ops_.device().upload(cos.data(), frame.cos);
    ops_.device().upload(sin.data(), frame.sin);
    embed(input, frame);
    see("vis.patch_embed", 0, frame.h);
    work.enter(kPlace);
    ops_.device().upload(positions(input.grid_h, input.grid_w).data(), frame.place_f32);
    ops_.copy(frame.place_f32, frame.place);
    for (int64_t t = 0; t < frame.frames; ++t) {
      const View h = frame.frame(frame.h, t);
      ops_.add(h, frame.place, h);
    }
    see("vis.block0_in", 0, frame.h);
    see("vis.cos", 0, frame.cos);
    see("vis.sin", 0, frame.sin);
    size_t tap = 0;
    for (int64_t i = 0; i < dims_.depth; ++i) {
      control.progress("encode pictures", step++, steps);
      run_block(blocks_[static_cast<size_t>(i)], frame);
      see("vis.block", i, frame.h);
      if (tap < dims_.taps.size() && dims_.taps[tap] == i) {
        work.enter(kMergeCall);
        const View out = level(static_cast<int64_t>(tap) + 1);
        merge(deepstack_[tap], frame, out);
        see("vis.deepstack", static_cast<int64_t>(tap), out);
        ++tap;
      }
    }
    work.enter(kMergeCall);
    merge(merger_, frame, level(0));
    see("vis.merger", 0, level(0));
    token += input.tokens();
  }
  control.progress("encode pictures", steps, steps);
}

}  // namespace h3::text
