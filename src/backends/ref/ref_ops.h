// The oracle: every operation as plain loops with double accumulators and exactly the roundings ops.h names. It shares
// no kernel with a fast back end. Calls are not deferred. Scratch comes from the heap, never from the device.
#pragma once

#include <functional>
#include <memory>

#include "base/context.h"
#include "ops/ops.h"

namespace h3 {

class RefOps : public Ops {
 public:
  explicit RefOps(Context& context) : context_(context) {}
  const char* name() const override { return "ref"; }
  Device& device() override { return device_; }
  Context& context() override { return context_; }
  void sync() override {}

  std::unique_ptr<Linear> make_linear(LinearSpec spec) override;
  std::unique_ptr<Conv> make_conv(ConvSpec spec) override;

  void copy(const View& src, const View& dst) override;
  void fill(const View& dst, float value) override;
  void gather_rows(const View& src, const View& ids, const View& dst) override;
  void scatter_rows(const View& src, const View& ids, const View& dst) override;
  void scatter_add_rows(const View& src, const View& ids, const View& dst) override;
  void linear(const Linear& weight, const View& x, const View& y) override;
  void linear_add(const Linear& weight, float scale, const View& x, const View& y) override;
  void linear_onto(const Linear& weight, const View& x, const View& y) override;
  void rms_norm(const View& x, const View& w, float eps, NormRounding rounding, const View& y) override;
  void layer_norm(const View& x, const View& w, const View& b, float eps, const View& y) override;
  void norm_modulate(const View& x, const View& w, float eps, const Modulation& mod, const View& h) override;
  void gated_add(const View& x, const View& y, const Gate& gate) override;
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
  std::string refuses_eight_bit(int64_t) const override { return {}; }
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
  void attention_eight_bit(const AttentionArgs& args);
  // body(row, begin, count) for pieces of the rows of `shape`, in parallel; the pieces depend on the shape alone.
  void for_pieces(const View& shape, const std::function<void(int64_t, int64_t, int64_t)>& body);
  // body(row) for whole rows, in parallel.
  void for_rows(int64_t rows, int64_t length, const std::function<void(int64_t)>& body);

  Context& context_;
  HostDevice device_;
};

std::unique_ptr<Ops> make_ref_ops(Context& context);

}  // namespace h3
