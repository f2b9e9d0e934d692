#include "model/text/language.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/workspace.h"

namespace h3::text {
namespace {

// Calls of the workspace table, in order; kAttention..kMlp repeat per layer.
enum Call : int { kStart, kAttention, kAfterAttention, kMlp };

WorkspacePlan plan_language(const LanguageDims& dims, DType type, int64_t rows, int64_t spliced) {
  const int64_t chunk = std::min(rows, kRowChunk);
  return plan_workspace({
      {"x", type, {rows, dims.hidden}, kStart, kMlp},
      {"cos", DType::f32, {rows, dims.head_dim / 2}, kStart, kMlp},
      {"sin", DType::f32, {rows, dims.head_dim / 2}, kStart, kMlp},
      {"splice", DType::i32, {std::max<int64_t>(spliced, 1)}, kStart, kMlp},
      {"stage", DType::f32, {chunk, dims.hidden}, kStart, kStart},
      {"normed", type, {rows, dims.hidden}, kAttention, kMlp},
      {"qkv", type, {rows, dims.query() + 2 * dims.kv()}, kAttention, kAttention},
      {"heads", type, {rows, dims.query()}, kAttention, kAfterAttention},
      {"branch", type, {rows, dims.hidden}, kAfterAttention, kMlp},
      {"mlp", type, {chunk, 2 * dims.ffn}, kMlp, kMlp},
  });
}

}  // namespace

BoundLanguage bind_language(WeightBinder& binder, const Names& names, const LanguageDims& dims, int tap) {
  BoundLanguage bound{};
  const Lengths lengths{.language = &dims};
  bind_rows(binder, names.language, kEmbed, bound.embed, lengths);
  bound.layers.resize(static_cast<size_t>(tap));
  for (size_t l = 0; l < bound.layers.size(); ++l) {
    bind_rows(binder, names.language + "layers." + std::to_string(l) + ".", kLayer, bound.layers[l], lengths);
  }
  check_awq(binder, bound.layers);
  // What the tap does not reach: later layers, the final norm, the head.
  for (int64_t l = tap; l < dims.layers; ++l) {
    binder.ignore_prefix(names.language + "layers." + std::to_string(l) + ".");
  }
  binder.ignore_prefix(names.language + "norm.");
  binder.ignore_prefix("lm_head.");
  return bound;
}

struct LanguageModel::Pass {
  Workspace& work;
  View x, cos, sin, splice, stage, normed, qkv, heads, branch, mlp;

  explicit Pass(Workspace& workspace)
      : work(workspace),
        x(work["x"]),
        cos(work["cos"]),
        sin(work["sin"]),
        splice(work["splice"]),
        stage(work["stage"]),
        normed(work["normed"]),
        qkv(work["qkv"]),
        heads(work["heads"]),
        branch(work["branch"]),
        mlp(work["mlp"]) {}
};

LanguageModel::LanguageModel(const Materials& materials, const LanguageDims& dims, const BoundLanguage& bound)
    : ops_(materials.ops), dims_(dims), type_(activation_type(materials.compute)) {
  const StoredMatrix table = materials.binder.matrix(bound.embed.table);
  embedding_.name = "te.embed_tokens";
  embedding_.append(table, 0, table.rows);
  for (size_t l = 0; l < bound.layers.size(); ++l) {
    const LayerTensors& t = bound.layers[l];
    const std::string label = "te.layers." + std::to_string(l);
    LayerSource& source = sources_.emplace_back();
    source.input_norm = materials.binder.values(t.input_norm);
    source.q_norm = materials.binder.values(t.q_norm);
    source.k_norm = materials.binder.values(t.k_norm);
    source.mlp_norm = materials.binder.values(t.mlp_norm);
    source.qkv = materials.source(label + ".self_attn.qkv", {t.q, t.k, t.v});
    source.out = materials.source(label + ".self_attn.o_proj", {t.out});
    source.gate_up = materials.source(label + ".mlp.gate_up", {t.gate, t.up});
    source.down = materials.source(label + ".mlp.down_proj", {t.down});
  }
  const int64_t total = static_cast<int64_t>(sources_.size());
  const auto make = [this, compute = materials.compute](int64_t l, WeightGroup* group) {
    return make_layer(sources_[static_cast<size_t>(l)], compute, group);
  };
  layers_.load(ops_, total, materials.resident_layers, make, [&](int64_t done) { materials.loaded(done, total); });
}

int64_t LanguageModel::Layer::bytes() const {
  int64_t sum = qkv->bytes + out->bytes + gate_up->bytes + down->bytes;
  for (const Tensor* norm : {&input_norm, &q_norm, &k_norm, &mlp_norm}) sum += norm->view.bytes();
  return sum;
}

LanguageModel::Layer LanguageModel::make_layer(const LayerSource& source, Compute compute, WeightGroup* group) const {
  const auto linear = [&](const MatrixSource& weight) {
    LinearSpec spec;
    spec.label = weight.name;
    spec.weight = weight;
    spec.compute = compute;
    spec.group = group;
    return ops_.make_linear(std::move(spec));
  };
  const auto norm = [&](const std::vector<float>& values) {
    return upload_f32(ops_.device(), values.data(), {static_cast<int64_t>(values.size())}, DType::f32, "norm weights");
  };
  Layer layer;
  layer.qkv = linear(source.qkv);
  layer.out = linear(source.out);
  layer.gate_up = linear(source.gate_up);
  layer.down = linear(source.down);
  layer.input_norm = norm(source.input_norm);
  layer.q_norm = norm(source.q_norm);
  layer.k_norm = norm(source.k_norm);
  layer.mlp_norm = norm(source.mlp_norm);
  return layer;
}

void LanguageModel::embed(const std::vector<int32_t>& ids, const Pass& pass) const {
  const int64_t rows = static_cast<int64_t>(ids.size());
  std::vector<float> stage(static_cast<size_t>(pass.stage.elements()));
  for (int64_t begin = 0; begin < rows; begin += kRowChunk) {
    const int64_t count = std::min(kRowChunk, rows - begin);
    for (int64_t i = 0; i < count; ++i) {
      const int32_t id = ids[static_cast<size_t>(begin + i)];
      if (id < 0 || id >= embedding_.rows) {
        fail(Code::data,
             "token id %d is outside the conditioner's %lld embedding rows; the tokenizer is another model's", id,
             static_cast<long long>(embedding_.rows));
      }
      embedding_.decode_rows(id, 1, stage.data() + i * dims_.hidden);
    }
    const View staged = pass.stage.slice(0, 0, count);
    ops_.device().upload(stage.data(), staged);
    ops_.copy(staged, pass.x.slice(0, begin, count));
  }
}

// Interleaved M-RoPE: slot i turns with H when i % 3 == 1 and with W when i % 3 == 2, while the section of that axis
// lasts, else with T. Angles are f32 products; the functions of them are rounded once.
void LanguageModel::rotary_tables(const std::vector<VisionRun>& runs, const Pass& pass) const {
  const int64_t rows = pass.x.dim[0], pairs = dims_.head_dim / 2;
  const std::vector<std::vector<int32_t>> positions = rotary_positions(rows, runs);
  std::vector<float> cos(static_cast<size_t>(rows * pairs)), sin(cos.size());
  for (int64_t j = 0; j < pairs; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(dims_.head_dim);
    const float inverse = 1.0f / static_cast<float>(std::pow(dims_.theta, static_cast<double>(exponent)));
    const size_t slot = static_cast<size_t>(j % 3);
    const size_t axis = slot != 0 && j < 3 * dims_.sections[slot] ? slot : 0;
    for (int64_t row = 0; row < rows; ++row) {
      const float angle = static_cast<float>(positions[axis][static_cast<size_t>(row)]) * inverse;
      cos[static_cast<size_t>(row * pairs + j)] = static_cast<float>(std::cos(static_cast<double>(angle)));
      sin[static_cast<size_t>(row * pairs + j)] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  ops_.device().upload(cos.data(), pass.cos);
  ops_.device().upload(sin.data(), pass.sin);
}

void LanguageModel::run_layer(const Layer& layer, const Pass& pass) const {
  const int64_t query = dims_.query(), kv = dims_.kv(), rows = pass.x.dim[0];
  pass.work.enter(kAttention);
  ops_.rms_norm(pass.x, layer.input_norm, dims_.eps, NormRounding::twice, pass.normed);
  ops_.linear(*layer.qkv, pass.normed, pass.qkv);
  const View q = pass.qkv.slice(1, 0, query).split(1, dims_.head_dim);
  const View k = pass.qkv.slice(1, query, kv).split(1, dims_.head_dim);
  const View v = pass.qkv.slice(1, query + kv, kv).split(1, dims_.head_dim);
  const Rope rope{.cos = pass.cos, .sin = pass.sin, .rounding = RopeRounding::per_op};
  ops_.head_norm_rope(q, {true, layer.q_norm, dims_.eps, NormRounding::twice}, rope);
  ops_.head_norm_rope(k, {true, layer.k_norm, dims_.eps, NormRounding::twice}, rope);
  ops_.attention({.q = q,
                  .k = k,
                  .v = v,
                  .out = pass.heads.split(1, dims_.head_dim),
                  .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dims_.head_dim))),
                  .causal = true});
  pass.work.enter(kAfterAttention);
  ops_.linear(*layer.out, pass.heads, pass.branch);
  ops_.add(pass.x, pass.branch, pass.x);
  pass.work.enter(kMlp);
  ops_.rms_norm(pass.x, layer.mlp_norm, dims_.eps, NormRounding::twice, pass.normed);
  for (int64_t begin = 0; begin < rows; begin += kRowChunk) {
    const int64_t count = std::min(kRowChunk, rows - begin);
    const View mlp = pass.mlp.slice(0, 0, count);
    const View gate = mlp.slice(1, 0, dims_.ffn), up = mlp.slice(1, dims_.ffn, dims_.ffn);
    ops_.linear(*layer.gate_up, pass.normed.slice(0, begin, count), mlp);
    ops_.swiglu(gate, up, gate);
    ops_.linear(*layer.down, gate, pass.branch.slice(0, begin, count));
  }
  ops_.add(pass.x, pass.branch, pass.x);
}

std::vector<float> LanguageModel::forward(const std::vector<int32_t>& ids, const std::vector<VisionRun>& runs,
                                          const Splice& splice, const Control& control, const TextProbe& probe) {
  const int64_t rows = static_cast<int64_t>(ids.size()), layers = layers_.size();
  H3_ASSERT(rows > 0);
  const int64_t spliced = static_cast<int64_t>(splice.rows.size());
  Workspace work(ops_.device(), plan_language(dims_, type_, rows, spliced), "text encoder workspace");
  ops_.reserve(rows, dims_.query());
  const Pass pass(work);
  const auto see = [&](const char* name, int64_t index, const View& view) {
    if (!probe) return;
    ops_.sync();
    probe(name, index, 0, view);
  };

  work.enter(kStart);
  rotary_tables(runs, pass);
  see("lm.cos", 0, pass.cos);
  see("lm.sin", 0, pass.sin);
  embed(ids, pass);
  int64_t levels = 0;
  if (spliced > 0) {
    levels = splice.features.dim[0] - 1;
    ops_.device().upload(splice.rows.data(), pass.splice);
    ops_.scatter_rows(splice.features.select(0, 0), pass.splice, pass.x);
  }
  see("lm.in.inputs_embeds", 0, pass.x);
  for (int64_t l = 0; l < layers; ++l) {
    control.progress("encode text", l, layers);
    ops_.pace();
    run_layer(layers_.enter(l), pass);
    layers_.leave(l);
    see("lm.layer", l, pass.x);
    // hidden_states[k] is the output of layer k - 1 itself: what is added behind the tapped layer is not part of it.
    if (l < levels && l + 1 < layers) ops_.scatter_add_rows(splice.features.select(0, l + 1), pass.splice, pass.x);
  }
  ops_.sync();
  control.progress("encode text", layers, layers);
  return download_f32(pass.x);
}

}  // namespace h3::text
