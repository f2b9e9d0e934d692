// How far a back end may lie from the oracle, op by op (style C4): for a sum of depth K in f32 with magnitude
// m = sum |a_k b_k| and a result y stored with unit roundoff u_out,
//   |got - want| <= 8 sqrt(K) u_f32 m  +  2 u_T (every rounded intermediate that reaches y)  +  2 u_out |y|.
// The last term is added by find_divergence; the functions here give the first two, the slack. All views are on the
// host.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/ops.h"

namespace h3::contract {

// Per element of an output in row-major order. Empty: the contract of the op fixes the result to the bit.
using Slack = std::vector<double>;
inline constexpr double kOpen = -1;  // as a slack: the contract says nothing about this element

double unit_roundoff(DType type);

struct Divergence {
  int64_t index = 0;  // of the first bad element, row-major
  int64_t bad = 0;    // how many
  double got = 0, want = 0, allowed = 0;
};

// NaN must meet NaN and an infinity itself. Results below the smallest normal f32 may be flushed to zero.
// Integer views must be equal.
std::optional<Divergence> find_divergence(const View& got, const View& want, const Slack& slack);

// `want` is the oracle's output. In-place ops: x as it was before the call.
Slack rms_norm(const View& want, NormRounding rounding);
Slack layer_norm(const View& x, const View& w, const View& b, float eps);
Slack norm_modulate(const View& x, const View& w, float eps, const Modulation& mod, DType type);
Slack head_norm_rope(const View& x, const Ops::HeadNorm& norm, const Rope& rope);
Slack swiglu(const View& gate, const View& value, const View& want);
Slack silu(const View& want);
Slack gelu(const View& x);
Slack scaled_add(const View& y, const View& scale, DType type);  // type of x
Slack l1_pair(const View& a, const View& want);
Slack group_norm_silu(const View& x, int groups, const View& w, const View& b, float eps);
Slack snake(const View& x, const View& a, const View& inv);
Slack aa_snake(const View& x, const View& a, const View& inv, const View& up, const View& down);
// magnitude: the op on absolute operands, f64, same dims as the output; depth: K.
Slack dot(const View& magnitude, int64_t depth);
// want: y after the call; magnitude of the product alone.
Slack linear_add(const View& want, const View& magnitude, float scale, int64_t depth);
// A linear and what follows it: `sums` is what the oracle's linear gave, `slack` what its result may be off.
// linear_swiglu: gate and up are halves of one.
Slack linear_swiglu(const View& gate, const View& up, const View& want, const Slack& slack);
Slack linear_scaled_add(const View& sums, const View& scale, DType type, const Slack& slack);  // type of x
Slack linear_head_norm_rope(const View& sums, int64_t heads, int64_t d, const Ops::HeadNorm& norm, const Rope& rope,
                            const Slack& slack);
// magnitude: attention with |v| in place of v, by the same arithmetic (AttentionArgs::math).
Slack attention(const AttentionArgs& args, const View& magnitude);
// The same; kc and vc round to T too.
Slack sparse_attention(const SparseAttentionArgs& args, const View& magnitude);
// What rounding the weights to the type of x adds to y = x W^T; magnitude as for dot.
void add_rounded_weights(const View& x, const View& magnitude, Slack& slack);
// What sums of products of eight-bit floats add to y: they are aligned to the largest of a few dozen products and cut
// to 13 bits behind its first before f32 takes over. Magnitude as for dot.
void add_float8_sums(const View& magnitude, Slack& slack);
// What linear_onto adds: y holds what was there and the product `alone`, which may be rounded first. want: y after.
void add_rounded_product(const View& want, const View& alone, DType type, Slack& slack);
// What quantising the rows of x to int8 adds to y = x W^T; l1 and l2 are the norms of the rows of W, [out].
void add_int8_activations(const View& x, const std::vector<double>& l1, const std::vector<double>& l2, Slack& slack);

}  // namespace h3::contract
