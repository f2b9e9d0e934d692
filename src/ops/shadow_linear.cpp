// Linears and what is fused with them.
#include "ops/shadow_ops.h"
#include "ops/shadow_views.h"
#include "tensor/rows.h"

namespace h3 {

ShadowOps::Multiplied::Multiplied(ShadowOps& ops, const ShadowLinear& w, const View& x) : view(x) {
  if (!w.float8_activations && !w.nvfp4_activations && w.rotation == 0) return;
  Device& device = ops.oracle_->device();
  rounded = w.rotation > 0 ? int8_rotated(device, x, w.rotation)
                           : rounded_rows(device, x, w.nvfp4_activations ? nvfp4_row_round : float8_row_round);
  view = rounded;
}

void ShadowOps::linear(const Linear& weight, const View& x, const View& y) { product(weight, x, y, false); }

void ShadowOps::linear_onto(const Linear& weight, const View& x, const View& y) { product(weight, x, y, true); }

void ShadowOps::product(const Linear& weight, const View& x, const View& y, bool onto) {
  const ShadowLinear& w = static_cast<const ShadowLinear&>(weight);
  last_label_ = w.label;
  Call call(*this, onto ? "linear_onto" : "linear", &w);
  const View& given = call.in(x);
  const Multiplied operand(*this, w, given);
  const View& ry = call.out(y);
  contract::Slack slack;
  Tensor alone;
  call.run([&] { onto ? fast_->linear_onto(*w.fast, x, y) : fast_->linear(*w.fast, x, y); },
           [&] {
             if (!onto) return void(slack = oracle_linear(w, operand, ry));
             alone = f64_like(oracle_->device(), ry);
             slack = oracle_linear(w, operand, alone);
             oracle_->linear_onto(*w.oracle, operand.view, ry);
           });
  if (y.elements() == 0) return;
  if (onto) contract::add_rounded_product(ry, alone, y.type, slack);
  call.check(0, slack);
}

// y = x W^T + bias by the oracle, and how far the kernel may be from it.
contract::Slack ShadowOps::oracle_linear(const ShadowLinear& w, const Multiplied& x, const View& y) {
  const View& rx = x.view;
  oracle_->linear(*w.oracle, rx, y);
  if (y.elements() == 0) return {};
  const Tensor size = absolute(oracle_->device(), rx), magnitude = f64_like(oracle_->device(), y);
  oracle_->linear(*w.magnitude, size, magnitude);
  // Integers are summed exactly; only the scales and the bias round.
  contract::Slack slack = contract::dot(magnitude, w.compute == Compute::int8 ? 1 : w.in);
  if (w.rounds_weights) contract::add_rounded_weights(rx, magnitude.view, slack);
  if (w.float8_activations || w.nvfp4_activations) contract::add_float8_sums(magnitude.view, slack);
  if (!w.l1.empty()) contract::add_int8_activations(rx, w.l1, w.l2, slack);
  return slack;
}

void ShadowOps::quantise_nvfp4(const View& x, const View& factors, const View& codes, const View& scales) {
  Call call(*this, "quantise_nvfp4");
  const View &rx = call.in(x), &f = call.out(factors), &c = call.out(codes), &s = call.out(scales);
  call.run([&] { fast_->quantise_nvfp4(x, factors, codes, scales); }, [&] { oracle_->quantise_nvfp4(rx, f, c, s); });
  for (const int output : {0, 1, 2}) call.check(output, {});
}

// The fused ones: the oracle composes, and what its linear may be off passes through what follows.
void ShadowOps::linear_swiglu(const Linear& weight, const View& x, const View& wide, const View& out) {
  const ShadowLinear& w = static_cast<const ShadowLinear&>(weight);
  last_label_ = w.label;
  const int64_t half = wide.dim[1] / 2;
  Call call(*this, "linear_swiglu", &w);
  const View &rx = call.in(x), &ro = call.out(out);
  call.out(wide);  // so that its gaps are checked
  const Tensor sums(oracle_->device(), wide.type, {wide.dim[0], wide.dim[1]}, "shadow result");
  const View gate = sums.view.slice(1, 0, half), up = sums.view.slice(1, half, half);
  contract::Slack slack;
  call.run([&] { fast_->linear_swiglu(*w.fast, x, wide, out); },
           [&] {
             slack = oracle_linear(w, {*this, w, rx}, sums);
             oracle_->swiglu(gate, up, ro);
           });
  if (out.elements() > 0) call.check(0, contract::linear_swiglu(gate, up, ro, slack));
}

void ShadowOps::linear_scaled_add(const Linear& weight, const View& h, const View& y, const View& scale,
                                  const View& x) {
  const ShadowLinear& w = static_cast<const ShadowLinear&>(weight);
  last_label_ = w.label;
  Call call(*this, "linear_scaled_add", &w);
  const View &rh = call.in(h), &rs = call.in(scale), &rx = call.out(x);
  call.out(y);  // so that its gaps are checked
  const Tensor sums(oracle_->device(), y.type, {y.dim[0], y.dim[1]}, "shadow result");
  contract::Slack slack;
  call.run([&] { fast_->linear_scaled_add(*w.fast, h, y, scale, x); },
           [&] {
             slack = oracle_linear(w, {*this, w, rh}, sums);
             oracle_->scaled_add(rx, sums, rs);
           });
  if (x.elements() > 0) call.check(0, contract::linear_scaled_add(sums, rs, x.type, slack));
}

void ShadowOps::linear_head_norm_rope(const Linear& weight, const View& x, int64_t heads, int64_t d,
                                      const HeadNorm& norm, const Rope& rope, const View& y) {
  const ShadowLinear& w = static_cast<const ShadowLinear&>(weight);
  last_label_ = w.label;
  Call call(*this, "linear_head_norm_rope", &w);
  const View &rx = call.in(x), &ry = call.out(y);
  HeadNorm rn = norm;
  rn.w = call.in(norm.w);
  const Rope rr{call.in(rope.cos), call.in(rope.sin), rope.rounding};
  const Tensor sums(oracle_->device(), y.type, {y.dim[0], y.dim[1]}, "shadow result");
  contract::Slack slack;
  call.run([&] { fast_->linear_head_norm_rope(*w.fast, x, heads, d, norm, rope, y); },
           [&] {
             slack = oracle_linear(w, {*this, w, rx}, sums);
             oracle_->copy(sums, ry);
             oracle_->head_norm_rope(ry.slice(1, 0, heads * d).split(1, d), rn, rr);
           });
  if (y.elements() > 0) call.check(0, contract::linear_head_norm_rope(sums, heads, d, rn, rr, slack));
}

void ShadowOps::linear_add(const Linear& weight, float scale, const View& x, const View& y) {
  scaled_product(weight, scale, x, y, true);
}

void ShadowOps::linear_scaled(const Linear& weight, float scale, const View& x, const View& y) {
  scaled_product(weight, scale, x, y, false);
}

void ShadowOps::scaled_product(const Linear& weight, float scale, const View& x, const View& y, bool onto) {
  const ShadowLinear& w = static_cast<const ShadowLinear&>(weight);
  last_label_ = w.label;
  Call call(*this, onto ? "linear_add" : "linear_scaled", &w);
  const View &rx = call.in(x), &ry = call.out(y);
  const auto run = [&](Ops& ops, const Linear& linear, const View& from, const View& to) {
    onto ? ops.linear_add(linear, scale, from, to) : ops.linear_scaled(linear, scale, from, to);
  };
  call.run([&] { run(*fast_, *w.fast, x, y); }, [&] { run(*oracle_, *w.oracle, rx, ry); });
  if (y.elements() == 0) return;
  const Tensor size = absolute(oracle_->device(), rx), magnitude = f64_like(oracle_->device(), ry);
  oracle_->linear(*w.magnitude, size, magnitude);
  call.check(0, contract::linear_add(ry, magnitude, scale, w.in));
}

}  // namespace h3
