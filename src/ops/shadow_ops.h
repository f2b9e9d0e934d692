// The shadow's types, for its own source files: every call runs on both back ends and is compared. See shadow.h.
#pragma once

#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/contract.h"
#include "ops/mirror.h"

namespace h3 {

struct ShadowLinear final : Linear {
  std::unique_ptr<Linear> fast, oracle, magnitude;
  std::vector<double> l1, l2;  // norms of the weight's rows, where the kernel quantises activations
};

struct ShadowConv final : Conv {
  std::unique_ptr<Conv> fast, oracle, magnitude;
  int64_t depth = 0;
};

inline std::string index_text(const View& view, int64_t index) {
  std::string text;
  for (int i = view.rank - 1; i >= 0; --i) {
    text = std::to_string(index % view.dim[i]) + (text.empty() ? "" : ", ") + text;
    index /= view.dim[i];
  }
  return "[" + text + "]";
}

class ShadowOps final : public Ops {
 public:
  ShadowOps(std::unique_ptr<Ops> fast, std::unique_ptr<Ops> oracle)
      : fast_(std::move(fast)), oracle_(std::move(oracle)), name_(std::string("shadow(") + fast_->name() + ")") {
    H3_ASSERT(oracle_->device().is_host());
  }
  const char* name() const override { return name_.c_str(); }
  Device& device() override { return fast_->device(); }
  Context& context() override { return fast_->context(); }
  void sync() override { fast_->sync(); }
  void reserve(int64_t rows, int64_t heads_by_dim) override {
    fast_->reserve(rows, heads_by_dim);
    oracle_->reserve(rows, heads_by_dim);
  }

  std::unique_ptr<Linear> make_linear(LinearSpec spec) override;
  std::unique_ptr<Conv> make_conv(ConvSpec spec) override;

  void copy(const View& src, const View& dst) override;
  void fill(const View& dst, float value) override;
  void gather_rows(const View& src, const View& ids, const View& dst) override;
  void scatter_rows(const View& src, const View& ids, const View& dst) override;
  void scatter_add_rows(const View& src, const View& ids, const View& dst) override;
  void linear(const Linear& weight, const View& x, const View& y) override;
  void linear_add(const Linear& weight, float scale, const View& x, const View& y) override;
  void linear_scaled(const Linear& weight, float scale, const View& x, const View& y) override;
  void linear_onto(const Linear& weight, const View& x, const View& y) override;
  // The rows are compared too, so they are not the reader's alone.
  void feeds(const Linear& reader, bool) override {
    fast_->feeds(*static_cast<const ShadowLinear&>(reader).fast, false);
  }
  void linear_swiglu(const Linear& weight, const View& x, const View& wide, const View& out) override;
  void linear_scaled_add(const Linear& weight, const View& h, const View& y, const View& scale, const View& x) override;
  void linear_head_norm_rope(const Linear& weight, const View& x, int64_t heads, int64_t d, const HeadNorm& norm,
                             const Rope& rope, const View& y) override;
  void quantise_nvfp4(const View& x, const View& factors, const View& codes, const View& scales) override;
  void rms_norm(const View& x, const View& w, float eps, NormRounding rounding, const View& y) override;
  void layer_norm(const View& x, const View& w, const View& b, float eps, const View& y) override;
  void norm_modulate(const View& x, const View& w, float eps, const Modulation& mod, const View& h) override;
  void gated_add(const View& x, const View& y, const Gate& gate) override;
  void gate_norm(const View& x, const View& y, const Gate& gate, const View& w, float eps, const Modulation& mod,
                 const View& h) override;
  void head_norm_rope(const View& x, const HeadNorm& norm, const Rope& rope) override;
  void swiglu(const View& gate, const View& value, const View& out) override;
  void silu(const View& x, const View& y) override;
  void gelu(const View& x, Gelu kind, const View& y) override;
  void add(const View& x, const View& y, const View& out) override;
  void subtract(const View& x, const View& y, const View& out) override;
  void multiply(const View& x, const View& y, const View& out) override;
  void scaled_add(const View& x, const View& y, const View& scale) override;
  void lincomb(const View& c, const View& a, const View& b, const View& out) override;
  void channel_affine(const View& x, const View& std, const View& mean, const View& y) override;
  void attention(const AttentionArgs& args) override;
  // What plans and requests ask of the device.
  bool multiplies_float8() const override { return fast_->multiplies_float8(); }
  std::string refuses_nvfp4() const override { return fast_->refuses_nvfp4(); }
  int64_t linear_bytes(const MatrixSource& weight, Compute compute) const override {
    return fast_->linear_bytes(weight, compute);
  }
  int64_t scratch_bytes(Compute compute) const override { return fast_->scratch_bytes(compute); }
  int64_t expansion_bytes(const MatrixSource& weight, Compute compute) const override {
    return fast_->expansion_bytes(weight, compute);
  }
  int64_t sparse_attention_bytes(int64_t rows, int64_t heads, int64_t head_dim, DType type) const override {
    return fast_->sparse_attention_bytes(rows, heads, head_dim, type);
  }
  std::string refuses_eight_bit(int64_t head_dim) const override { return fast_->refuses_eight_bit(head_dim); }
  int64_t eight_bit_bytes(int64_t rows, int64_t heads, int64_t head_dim) const override {
    return fast_->eight_bit_bytes(rows, heads, head_dim);
  }
  void sparse_attention(const SparseAttentionArgs& args) override;
  void conv(const Conv& conv, const View& x, const View& y) override;
  void group_norm_silu(const View& x, int groups, const View& w, const View& b, float eps, const View& y) override;
  void snake(const View& x, const View& a, const View& inv, const View& y) override;
  void aa_snake(const View& x, const View& a, const View& inv, const View& up, const View& down,
                const View& y) override;
  void blend_tile(const TileBlend& args) override;
  void to_unit_range(const View& x, const View& std, const View& mean, const View& y) override;
  void l1_pair(const View& a, const View& b, const View& out) override;
  void check_finite(const View& x, const View& flags) override;

 private:
  class Call;
  void product(const Linear& weight, const View& x, const View& y, bool onto);
  void scaled_product(const Linear& weight, float scale, const View& x, const View& y, bool onto);
  // The rows of a linear as they are multiplied.
  struct Multiplied {
    Multiplied(ShadowOps& ops, const ShadowLinear& w, const View& x);
    Tensor rounded;
    View view;
  };
  contract::Slack oracle_linear(const ShadowLinear& w, const Multiplied& x, const View& y);

  std::unique_ptr<Ops> fast_, oracle_;
  std::string name_;
  int64_t calls_ = 0;
  std::string last_label_;  // of the last linear or convolution, to place a call without a label
};

// One call: copies of its arguments, then the run on both, then the checks.
class ShadowOps::Call {
 public:
  Call(ShadowOps& ops, const char* op, const Linear* linear = nullptr, const Conv* conv = nullptr)
      : ops_(ops), op_(op), linear_(linear), conv_(conv) {
    ++ops.calls_;
    ops.fast_->sync();
  }
  const View& in(const View& view) { return mirrors_.emplace_back(ops_.oracle_->device(), view).view; }
  const View& out(const View& view) {
    Mirror& mirror = mirrors_.emplace_back(ops_.oracle_->device(), view);
    outputs_.push_back(&mirror);
    return mirror.view;
  }
  template <typename Fast, typename Oracle>
  void run(Fast fast, Oracle oracle) {
    fast();
    ops_.fast_->sync();
    for (const Mirror* output : outputs_) results_.emplace_back(ops_.oracle_->device(), output->original);
    check_gaps();
    oracle();
    ops_.oracle_->sync();
  }
  void check(int output, const contract::Slack& slack) {
    const View& want = outputs_[output]->view;
    if (want.elements() == 0) return;
    const std::optional<contract::Divergence> d =
        contract::find_divergence(std::next(results_.begin(), output)->view, want, slack);
    if (!d) return;
    fail(Code::numeric,
         "%s: output %d, element %s of %s %s is %.9g, %s has %.9g (allowed difference %.3g); %lld of %lld elements "
         "differ",
         place().c_str(), output, index_text(want, d->index).c_str(), want.shape().c_str(), name_of(want.type), d->got,
         ops_.oracle_->name(), d->want, d->allowed, static_cast<long long>(d->bad),
         static_cast<long long>(want.elements()));
  }

 private:
  std::string place() const {
    std::string text = strf("shadow: call %lld, %s", static_cast<long long>(ops_.calls_), op_);
    if (linear_ != nullptr) text += strf(" '%s' (%s)", linear_->label.c_str(), linear_->kernel.c_str());
    if (conv_ != nullptr) text += strf(" '%s' (%s)", conv_->label.c_str(), conv_->kernel.c_str());
    if (linear_ == nullptr && conv_ == nullptr && !ops_.last_label_.empty())
      text += " after '" + ops_.last_label_ + "'";
    return text + strf(" on %s", ops_.fast_->name());
  }
  // Nothing but the elements of outputs may have changed within the span of one.
  void check_gaps() {
    auto result = results_.begin();
    for (const Mirror* output : outputs_) {
      const Mirror& after = *result++;
      if (output->original.contiguous() || output->original.elements() == 0) continue;
      Mirror expected(ops_.oracle_->device(), output->original);
      std::memcpy(expected.bytes.view.data, output->bytes.view.data, static_cast<size_t>(output->bytes.view.bytes()));
      for (const Mirror* written : outputs_) take_elements(after, written->original, expected);
      const int64_t n = after.bytes.view.bytes();
      for (int64_t i = 0; i < n; ++i) {
        if (expected.bytes.view.data[i] == after.bytes.view.data[i]) continue;
        fail(Code::numeric,
             "%s: byte %lld behind the start of a strided output %s %s was changed; it is not part of it",
             place().c_str(), static_cast<long long>(i), after.view.shape().c_str(), name_of(after.view.type));
      }
    }
  }

  ShadowOps& ops_;
  const char* op_;
  const Linear* linear_;
  const Conv* conv_;
  std::list<Mirror> mirrors_;     // addresses stay
  std::vector<Mirror*> outputs_;  // as they were before the call; the oracle then writes them
  std::list<Mirror> results_;     // what fast made of them
};

}  // namespace h3
