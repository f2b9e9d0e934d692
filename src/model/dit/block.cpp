#include "model/dit/block.h"

#include <algorithm>
#include <cmath>

namespace h3::dit {
namespace {

Tensor upload_norm(Ops& ops, const std::vector<float>& values) {
  return upload_f32(ops.device(), values.data(), {static_cast<int64_t>(values.size())}, DType::f32, "norm weights");
}

}  // namespace

int64_t Block::bytes() const {
  int64_t sum = qkv->bytes + out->bytes + fc1->bytes + fc2->bytes;
  for (const Tensor* norm : {&norm1, &norm2, &q_norm, &k_norm}) sum += norm->view.bytes();
  return sum;
}

int64_t LiveBranch::bytes() const {
  int64_t sum = down->bytes;
  for (const Part& part : parts) sum += part.up->bytes;
  return sum;
}

void LiveBranch::count_filled() {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const Part& part : parts) ranges.emplace_back(part.first_row, part.up->out);
  std::sort(ranges.begin(), ranges.end());
  filled = 0;
  for (const auto& [first, count] : ranges) {
    if (first != filled) {
      filled = 0;
      return;
    }
    filled += count;
  }
}

// The branches come first: a matmul that adds to what y holds costs no more than one that does not.
void adapted_linear(Ops& ops, const Linear& base, const BranchUses& uses, const View& x, const View& low,
                    const View& y) {
  if (uses.empty()) return ops.linear(base, x, y);
  bool adds = uses.front().branch->filled != y.dim[1];
  if (adds) ops.fill(y, 0);
  for (const BranchUse& use : uses) {
    const LiveBranch& branch = *use.branch;
    const View ranks = low.slice(0, 0, x.dim[0]).slice(1, 0, branch.down->out);
    ops.linear(*branch.down, x, ranks);
    for (const LiveBranch::Part& part : branch.parts) {
      const View from = ranks.slice(1, part.first_rank, part.up->in), to = y.slice(1, part.first_row, part.up->out);
      const float scale = use.strength * part.scale;
      adds ? ops.linear_add(*part.up, scale, from, to) : ops.linear_scaled(*part.up, scale, from, to);
    }
    adds = true;
  }
  ops.linear_onto(base, x, y);
}

Block make_block(Ops& ops, const BlockSource& source, const std::string& label, Compute compute, WeightGroup* group) {
  const auto linear = [&](const char* name, const MatrixSource& weight) {
    LinearSpec spec;
    spec.label = label + "." + name;
    spec.weight = weight;
    spec.compute = compute;
    spec.group = group;
    return ops.make_linear(std::move(spec));
  };
  Block block;
  block.label = label;
  block.qkv = linear("attn.qkv_proj", source.qkv);
  block.out = linear("attn.out_proj", source.out);
  block.fc1 = linear("mlp.fc1", source.fc1);
  block.fc2 = linear("mlp.fc2", source.fc2);
  block.norm1 = upload_norm(ops, source.norm1);
  block.norm2 = upload_norm(ops, source.norm2);
  block.q_norm = upload_norm(ops, source.q_norm);
  block.k_norm = upload_norm(ops, source.k_norm);
  return block;
}

void attention_heads(Ops& ops, const Block& block, const BlockBranches& branches, const DitConfig& config,
                     const View& h, const Rope& rope, const BlockScratch& scratch, const HeadAttention& how,
                     const Probe& probe, const std::string& name) {
  const int64_t inner = config.inner();
  adapted_linear(ops, *block.qkv, branches.qkv, h, scratch.low, scratch.qkv);
  const auto heads = [&](int64_t part) { return scratch.qkv.slice(1, part * inner, inner).split(1, config.head_dim); };
  const View q = heads(0), k = heads(1), v = heads(2);
  const Ops::HeadNorm q_norm{true, block.q_norm, config.qk_norm_eps, NormRounding::once};
  const Ops::HeadNorm k_norm{true, block.k_norm, config.qk_norm_eps, NormRounding::once};
  if (probe.active()) {  // the same roundings in two calls, to show the values between
    ops.head_norm_rope(q, q_norm, {});
    ops.head_norm_rope(k, k_norm, {});
    probe(name + ".q_normed", q);
    probe(name + ".k_normed", k);
    probe(name + ".v", v);
    ops.head_norm_rope(q, {}, rope);
    ops.head_norm_rope(k, {}, rope);
  } else {
    ops.head_norm_rope(q, q_norm, rope);
    ops.head_norm_rope(k, k_norm, rope);
  }
  AttentionArgs args;
  args.q = q;
  args.k = k;
  args.v = v;
  args.out = scratch.attention.split(1, config.head_dim);
  args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  if (const SparseCall* const sparse = how.sparse; sparse != nullptr) {
    SparseAttentionArgs blocks;
    blocks.q = q;
    blocks.k = k;
    blocks.v = v;
    blocks.out = args.out;
    blocks.scale = args.scale;
    blocks.tau = sparse->tau;
    blocks.exact_keys = sparse->exact_keys;
    blocks.exact_blocks = sparse->exact_blocks;
    ops.sparse_attention(blocks);
    args.q = q.slice(0, 0, sparse->exact_keys);
    args.out = args.out.slice(0, 0, sparse->exact_keys);
  } else {
    args.math = how.math;
  }
  ops.attention(args);
  probe(name + ".attn_heads", scratch.attention);
}

void mlp_branch(Ops& ops, const Block& block, const BlockBranches& branches, const DitConfig& config, const View& h,
                const BlockScratch& scratch, const View& y, const Probe& probe, const std::string& name) {
  const int64_t rows = h.dim[0], chunk = scratch.gate_value.dim[0];
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t count = std::min(chunk, rows - first);
    const View both = scratch.gate_value.slice(0, 0, count);
    const View gate = both.slice(1, 0, config.ffn), value = both.slice(1, config.ffn, config.ffn);
    adapted_linear(ops, *block.fc1, branches.fc1, h.slice(0, first, count), scratch.low, both);
    ops.feeds(*block.fc2, branches.fc2.empty() && !probe.active());
    ops.swiglu(gate, value, gate);
    if (count == rows) probe(name + ".swiglu", gate);
    adapted_linear(ops, *block.fc2, branches.fc2, gate, scratch.low, y.slice(0, first, count));
  }
  probe(name + ".ff_out", y);
}

}  // namespace h3::dit
