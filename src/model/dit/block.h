// One transformer block, of the trunk or of the token refiner: its weights on the device and its two branches. The
// norms around the branches belong to the caller, who fuses them across blocks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/dit/config.h"
#include "model/dit/weights.h"
#include "ops/ops.h"

namespace h3::dit {

// Shows intermediate values to whoever asked for them (dumps, parity); costs nothing when nobody did.
class Probe {
 public:
  Probe() = default;
  Probe(Ops& ops, std::function<void(const char*, const View&)> show) : ops_(&ops), show_(std::move(show)) {}
  bool active() const { return static_cast<bool>(show_); }
  void operator()(const std::string& name, const View& view) const {
    if (!show_) return;
    ops_->sync();
    show_(name.c_str(), view);
  }

 private:
  Ops* ops_ = nullptr;
  std::function<void(const char*, const View&)> show_;
};

struct Block {
  std::string label;  // "dit.blocks.3"
  std::unique_ptr<Linear> qkv, out, fc1, fc2;
  Tensor norm1, norm2, q_norm, k_norm;  // f32
  int64_t bytes() const;
};

// One adapter's branch of one linear on the device: y += scale * up (down x), part by part. Parts of one linear share
// the product with the stacked down matrices.
struct LiveBranch {
  struct Part {
    std::unique_ptr<Linear> up;
    int64_t first_rank = 0, first_row = 0;
    float scale = 1;  // alpha / rank
  };
  std::unique_ptr<Linear> down;  // [sum of ranks, in]
  std::vector<Part> parts;
  int64_t filled = 0;  // the parts write rows [0, filled) of the result, each once; 0 = not so
  int64_t bytes() const;
  void count_filled();  // once the parts are complete
};

// The branches that a request adds to one linear.
struct BranchUse {
  const LiveBranch* branch = nullptr;
  float strength = 1;
};
using BranchUses = std::vector<BranchUse>;

struct BlockBranches {
  BranchUses qkv, out, fc1, fc2;
};

// Every branch on x, whatever form of x the base reads, each rounded to T; then y = linear_onto(x) adds the base to
// them. low [rows, >= ranks] T.
void adapted_linear(Ops& ops, const Linear& base, const BranchUses& uses, const View& x, const View& low,
                    const View& y);

// The matmul weights travel with `group` when there is one.
Block make_block(Ops& ops, const BlockSource& source, const std::string& label, Compute compute,
                 WeightGroup* group = nullptr);

// Views that a block computes in, all with the same number of rows.
struct BlockScratch {
  View qkv;         // [rows, 3 inner] T
  View attention;   // [rows, inner] T
  View gate_value;  // [chunk, 2 ffn] T; the MLP runs over chunks of rows, which bounds this
  View low;         // [rows, largest sum of ranks] T; empty without adapters
};

// Sparse attention of one call; tau and exact_keys as in SparseAttentionArgs. The first exact_keys queries are then
// computed densely and exactly, over all keys.
struct SparseCall {
  float tau = 1;
  int64_t exact_keys = 0;
  View exact_blocks;
};

// How the heads of one call attend: sparse, or all keys by this arithmetic.
struct HeadAttention {
  AttentionMath math = AttentionMath::exact;
  const SparseCall* sparse = nullptr;
};

// attention = softmax(q k^T) v of the heads of h, before the output projection; rope.cos empty: no rotation.
// Scratch: qkv.
void attention_heads(Ops& ops, const Block& block, const BlockBranches& branches, const DitConfig& config,
                     const View& h, const Rope& rope, const BlockScratch& scratch, const HeadAttention& how,
                     const Probe& probe, const std::string& name);

// y = fc2(silu(gate) * value). Scratch: gate_value.
void mlp_branch(Ops& ops, const Block& block, const BlockBranches& branches, const DitConfig& config, const View& h,
                const BlockScratch& scratch, const View& y, const Probe& probe, const std::string& name);

}  // namespace h3::dit
