#include "ops/shadow.h"

#include <cmath>
#include <utility>

#include "base/error.h"
#include "ops/contract.h"
#include "ops/shadow_ops.h"
#include "ops/shadow_views.h"
#include "tensor/rows.h"

namespace h3 {

// ---- prepare time ---------------------------------------------------------------------------------------------------

std::unique_ptr<Linear> ShadowOps::make_linear(LinearSpec spec) {
  auto linear = std::make_unique<ShadowLinear>();
  linear->fast = fast_->make_linear(spec);
  if (linear->fast->rotation > 0) {  // the oracle multiplies what the codes stand for before columns are rotated back
    for (MatrixSource::Part& part : spec.weight.parts) part.matrix.rotation = 0;
    spec.compute = Compute::packed;
  }
  const int64_t out = spec.weight.rows, in = spec.weight.cols;
  auto values = std::make_shared<std::vector<float>>(static_cast<size_t>(out * in));
  spec.weight.decode_rows(0, out, values->data());
  for (float& v : *values) v = std::fabs(v);
  LinearSpec magnitude{.label = spec.label, .bias = spec.bias, .compute = spec.compute, .max_rows = spec.max_rows};
  for (float& v : magnitude.bias) v = std::fabs(v);
  StoredMatrix matrix{.format = Format::f32, .rows = out, .cols = in};
  matrix.data = std::as_bytes(std::span<const float>(*values));
  matrix.keep_alive = values;
  magnitude.weight.append(matrix, 0, out);
  linear->oracle = oracle_->make_linear(std::move(spec));
  linear->magnitude = oracle_->make_linear(std::move(magnitude));
  static_cast<Linear&>(*linear) = *linear->fast;
  if (linear->compute == Compute::packed && linear->int8_activations) {
    for (int64_t o = 0; o < out; ++o) {
      double l1 = 0, l2 = 0;
      for (int64_t k = 0; k < in; ++k) {
        const double w = static_cast<double>((*values)[o * in + k]);
        l1 += w;
        l2 += w * w;
      }
      linear->l1.push_back(l1);
      linear->l2.push_back(std::sqrt(l2));
    }
  }
  return linear;
}

std::unique_ptr<Conv> ShadowOps::make_conv(ConvSpec spec) {
  auto conv = std::make_unique<ShadowConv>();
  ConvSpec magnitude = spec;
  for (float& v : magnitude.weight) v = std::fabs(v);
  for (float& v : magnitude.bias) v = std::fabs(v);
  conv->depth = spec.in * spec.kernel[0] * spec.kernel[1] * spec.kernel[2];
  conv->oracle = oracle_->make_conv(spec);
  conv->magnitude = oracle_->make_conv(std::move(magnitude));
  conv->fast = fast_->make_conv(std::move(spec));
  static_cast<Conv&>(*conv) = *conv->fast;
  return conv;
}

// ---- move: exact ----------------------------------------------------------------------------------------------------

void ShadowOps::copy(const View& src, const View& dst) {
  Call call(*this, "copy");
  const View &s = call.in(src), &d = call.out(dst);
  call.run([&] { fast_->copy(src, dst); }, [&] { oracle_->copy(s, d); });
  call.check(0, {});
}

void ShadowOps::fill(const View& dst, float value) {
  Call call(*this, "fill");
  const View& d = call.out(dst);
  call.run([&] { fast_->fill(dst, value); }, [&] { oracle_->fill(d, value); });
  call.check(0, {});
}

void ShadowOps::gather_rows(const View& src, const View& ids, const View& dst) {
  Call call(*this, "gather_rows");
  const View &s = call.in(src), &i = call.in(ids), &d = call.out(dst);
  call.run([&] { fast_->gather_rows(src, ids, dst); }, [&] { oracle_->gather_rows(s, i, d); });
  call.check(0, {});
}

void ShadowOps::scatter_rows(const View& src, const View& ids, const View& dst) {
  Call call(*this, "scatter_rows");
  const View &s = call.in(src), &i = call.in(ids), &d = call.out(dst);
  call.run([&] { fast_->scatter_rows(src, ids, dst); }, [&] { oracle_->scatter_rows(s, i, d); });
  call.check(0, {});
}

void ShadowOps::scatter_add_rows(const View& src, const View& ids, const View& dst) {
  Call call(*this, "scatter_add_rows");
  const View &s = call.in(src), &i = call.in(ids), &d = call.out(dst);
  call.run([&] { fast_->scatter_add_rows(src, ids, dst); }, [&] { oracle_->scatter_add_rows(s, i, d); });
  call.check(0, {});
}

// ---- dense, attention, convolutions ---------------------------------------------------------------------------------

void ShadowOps::attention(const AttentionArgs& args) {
  Call call(*this, "attention");
  AttentionArgs r = args;
  r.q = call.in(args.q);
  r.k = call.in(args.k);
  r.v = call.in(args.v);
  r.out = call.out(args.out);
  call.run([&] { fast_->attention(args); }, [&] { oracle_->attention(r); });
  if (args.out.elements() == 0) return;
  const Tensor size = absolute(oracle_->device(), r.v), magnitude = f64_like(oracle_->device(), r.out);
  AttentionArgs m = r;
  m.v = size;
  m.out = magnitude;
  oracle_->attention(m);
  call.check(0, contract::attention(r, magnitude));
}

void ShadowOps::sparse_attention(const SparseAttentionArgs& args) {
  Call call(*this, "sparse_attention");
  SparseAttentionArgs r = args;
  r.q = call.in(args.q);
  r.k = call.in(args.k);
  r.v = call.in(args.v);
  r.mask = call.in(args.mask);
  r.out = call.out(args.out);
  r.exact_blocks = call.out(args.exact_blocks);
  call.run([&] { fast_->sparse_attention(args); }, [&] { oracle_->sparse_attention(r); });
  if (args.out.elements() == 0) return;
  const Tensor size = absolute(oracle_->device(), r.v), magnitude = f64_like(oracle_->device(), r.out);
  SparseAttentionArgs m = r;
  m.v = size;
  m.out = magnitude;
  m.exact_blocks = {};
  oracle_->sparse_attention(m);
  call.check(0, contract::sparse_attention(r, magnitude));
  if (!args.exact_blocks.empty()) call.check(1, {});
}

void ShadowOps::conv(const Conv& conv, const View& x, const View& y) {
  const ShadowConv& c = static_cast<const ShadowConv&>(conv);
  last_label_ = c.label;
  Call call(*this, "conv", nullptr, &c);
  const View &rx = call.in(x), &ry = call.out(y);
  call.run([&] { fast_->conv(*c.fast, x, y); }, [&] { oracle_->conv(*c.oracle, rx, ry); });
  if (y.elements() == 0) return;
  const Tensor size = absolute(oracle_->device(), rx), magnitude = f64_like(oracle_->device(), ry);
  oracle_->conv(*c.magnitude, size, magnitude);
  call.check(0, contract::dot(magnitude, c.depth));
}

// ---- norm -----------------------------------------------------------------------------------------------------------

void ShadowOps::rms_norm(const View& x, const View& w, float eps, NormRounding rounding, const View& y) {
  Call call(*this, "rms_norm");
  const View &rx = call.in(x), &rw = call.in(w), &ry = call.out(y);
  call.run([&] { fast_->rms_norm(x, w, eps, rounding, y); }, [&] { oracle_->rms_norm(rx, rw, eps, rounding, ry); });
  call.check(0, contract::rms_norm(ry, rounding));
}

void ShadowOps::layer_norm(const View& x, const View& w, const View& b, float eps, const View& y) {
  Call call(*this, "layer_norm");
  const View &rx = call.in(x), &rw = call.in(w), &rb = call.in(b), &ry = call.out(y);
  call.run([&] { fast_->layer_norm(x, w, b, eps, y); }, [&] { oracle_->layer_norm(rx, rw, rb, eps, ry); });
  call.check(0, contract::layer_norm(rx, rw, rb, eps));
}

void ShadowOps::norm_modulate(const View& x, const View& w, float eps, const Modulation& mod, const View& h) {
  Call call(*this, "norm_modulate");
  const View &rx = call.in(x), &rw = call.in(w), &rh = call.out(h);
  const Modulation rm{call.in(mod.shift), call.in(mod.scale), call.in(mod.ids)};
  call.run([&] { fast_->norm_modulate(x, w, eps, mod, h); }, [&] { oracle_->norm_modulate(rx, rw, eps, rm, rh); });
  call.check(0, contract::norm_modulate(rx, rw, eps, rm, h.type));
}

void ShadowOps::gated_add(const View& x, const View& y, const Gate& gate) {
  Call call(*this, "gated_add");
  const View &rx = call.out(x), &ry = call.in(y);
  const Gate rg{call.in(gate.gate), call.in(gate.ids)};
  call.run([&] { fast_->gated_add(x, y, gate); }, [&] { oracle_->gated_add(rx, ry, rg); });
  call.check(0, {});
}

void ShadowOps::gate_norm(const View& x, const View& y, const Gate& gate, const View& w, float eps,
                          const Modulation& mod, const View& h) {
  Call call(*this, "gate_norm");
  const View &rx = call.out(x), &rh = call.out(h), &ry = call.in(y), &rw = call.in(w);
  const Gate rg{call.in(gate.gate), call.in(gate.ids)};
  const Modulation rm{call.in(mod.shift), call.in(mod.scale), call.in(mod.ids)};
  call.run([&] { fast_->gate_norm(x, y, gate, w, eps, mod, h); },
           [&] { oracle_->gate_norm(rx, ry, rg, rw, eps, rm, rh); });
  call.check(0, {});
  call.check(1, contract::norm_modulate(rx, rw, eps, rm, h.type));  // x is final before it is normalised
}

void ShadowOps::head_norm_rope(const View& x, const HeadNorm& norm, const Rope& rope) {
  Call call(*this, "head_norm_rope");
  const View &before = call.in(x), &rx = call.out(x);
  HeadNorm rn = norm;
  rn.w = call.in(norm.w);
  const Rope rr{call.in(rope.cos), call.in(rope.sin), rope.rounding};
  call.run([&] { fast_->head_norm_rope(x, norm, rope); }, [&] { oracle_->head_norm_rope(rx, rn, rr); });
  call.check(0, contract::head_norm_rope(before, rn, rr));
}

void ShadowOps::group_norm_silu(const View& x, int groups, const View& w, const View& b, float eps, const View& y) {
  Call call(*this, "group_norm_silu");
  const View &rx = call.in(x), &rw = call.in(w), &rb = call.in(b), &ry = call.out(y);
  call.run([&] { fast_->group_norm_silu(x, groups, w, b, eps, y); },
           [&] { oracle_->group_norm_silu(rx, groups, rw, rb, eps, ry); });
  call.check(0, contract::group_norm_silu(rx, groups, rw, rb, eps));
}

// ---- pointwise ------------------------------------------------------------------------------------------------------

void ShadowOps::swiglu(const View& gate, const View& value, const View& out) {
  Call call(*this, "swiglu");
  const View &g = call.in(gate), &v = call.in(value), &o = call.out(out);
  call.run([&] { fast_->swiglu(gate, value, out); }, [&] { oracle_->swiglu(g, v, o); });
  call.check(0, contract::swiglu(g, v, o));
}

void ShadowOps::silu(const View& x, const View& y) {
  Call call(*this, "silu");
  const View &rx = call.in(x), &ry = call.out(y);
  call.run([&] { fast_->silu(x, y); }, [&] { oracle_->silu(rx, ry); });
  call.check(0, contract::silu(ry));
}

void ShadowOps::gelu(const View& x, Gelu kind, const View& y) {
  Call call(*this, "gelu");
  const View &rx = call.in(x), &ry = call.out(y);
  call.run([&] { fast_->gelu(x, kind, y); }, [&] { oracle_->gelu(rx, kind, ry); });
  call.check(0, contract::gelu(rx));
}

void ShadowOps::add(const View& x, const View& y, const View& out) {
  Call call(*this, "add");
  const View &rx = call.in(x), &ry = call.in(y), &o = call.out(out);
  call.run([&] { fast_->add(x, y, out); }, [&] { oracle_->add(rx, ry, o); });
  call.check(0, {});
}

void ShadowOps::subtract(const View& x, const View& y, const View& out) {
  Call call(*this, "subtract");
  const View &rx = call.in(x), &ry = call.in(y), &o = call.out(out);
  call.run([&] { fast_->subtract(x, y, out); }, [&] { oracle_->subtract(rx, ry, o); });
  call.check(0, {});
}

void ShadowOps::multiply(const View& x, const View& y, const View& out) {
  Call call(*this, "multiply");
  const View &rx = call.in(x), &ry = call.in(y), &o = call.out(out);
  call.run([&] { fast_->multiply(x, y, out); }, [&] { oracle_->multiply(rx, ry, o); });
  call.check(0, {});
}

void ShadowOps::scaled_add(const View& x, const View& y, const View& scale) {
  Call call(*this, "scaled_add");
  const View &rx = call.out(x), &ry = call.in(y), &s = call.in(scale);
  call.run([&] { fast_->scaled_add(x, y, scale); }, [&] { oracle_->scaled_add(rx, ry, s); });
  call.check(0, contract::scaled_add(ry, s, x.type));
}

void ShadowOps::lincomb(const View& c, const View& a, const View& b, const View& out) {
  Call call(*this, "lincomb");
  const View &rc = call.in(c), &ra = call.in(a), &rb = call.in(b), &o = call.out(out);
  call.run([&] { fast_->lincomb(c, a, b, out); }, [&] { oracle_->lincomb(rc, ra, rb, o); });
  call.check(0, {});
}

void ShadowOps::channel_affine(const View& x, const View& std, const View& mean, const View& y) {
  Call call(*this, "channel_affine");
  const View &rx = call.in(x), &s = call.in(std), &m = call.in(mean), &ry = call.out(y);
  call.run([&] { fast_->channel_affine(x, std, mean, y); }, [&] { oracle_->channel_affine(rx, s, m, ry); });
  call.check(0, {});
}

void ShadowOps::snake(const View& x, const View& a, const View& inv, const View& y) {
  Call call(*this, "snake");
  const View &rx = call.in(x), &ra = call.in(a), &ri = call.in(inv), &ry = call.out(y);
  call.run([&] { fast_->snake(x, a, inv, y); }, [&] { oracle_->snake(rx, ra, ri, ry); });
  call.check(0, contract::snake(rx, ra, ri));
}

void ShadowOps::aa_snake(const View& x, const View& a, const View& inv, const View& up, const View& down,
                         const View& y) {
  Call call(*this, "aa_snake");
  const View &rx = call.in(x), &ra = call.in(a), &ri = call.in(inv), &ry = call.out(y);
  const View &f = call.in(up), &g = call.in(down);
  call.run([&] { fast_->aa_snake(x, a, inv, up, down, y); }, [&] { oracle_->aa_snake(rx, ra, ri, f, g, ry); });
  call.check(0, contract::aa_snake(rx, ra, ri, f, g));
}

// ---- video pixels ---------------------------------------------------------------------------------------------------

void ShadowOps::blend_tile(const TileBlend& args) {
  Call call(*this, "blend_tile");
  TileBlend r = args;
  r.tile = call.in(args.tile);
  r.up = call.in(args.up);
  r.left = call.in(args.left);
  r.out = call.out(args.out);
  call.run([&] { fast_->blend_tile(args); }, [&] { oracle_->blend_tile(r); });
  call.check(0, {});
}

void ShadowOps::to_unit_range(const View& x, const View& std, const View& mean, const View& y) {
  Call call(*this, "to_unit_range");
  const View &rx = call.in(x), &s = call.in(std), &m = call.in(mean), &ry = call.out(y);
  call.run([&] { fast_->to_unit_range(x, std, mean, y); }, [&] { oracle_->to_unit_range(rx, s, m, ry); });
  call.check(0, {});
}

// ---- reduce ---------------------------------------------------------------------------------------------------------

void ShadowOps::l1_pair(const View& a, const View& b, const View& out) {
  Call call(*this, "l1_pair");
  const View &ra = call.in(a), &rb = call.in(b), &o = call.out(out);
  call.run([&] { fast_->l1_pair(a, b, out); }, [&] { oracle_->l1_pair(ra, rb, o); });
  call.check(0, contract::l1_pair(ra, o));
}

void ShadowOps::check_finite(const View& x, const View& flags) {
  Call call(*this, "check_finite");
  const View &rx = call.in(x), &f = call.out(flags);
  call.run([&] { fast_->check_finite(x, flags); }, [&] { oracle_->check_finite(rx, f); });
  call.check(0, {});
}

std::unique_ptr<Ops> make_shadow(std::unique_ptr<Ops> fast, std::unique_ptr<Ops> oracle) {
  return std::make_unique<ShadowOps>(std::move(fast), std::move(oracle));
}

}  // namespace h3
