// The class behind make_cpu_ops; its operations are spread over move, rows, linear, attention and conv .cpp.
//
// Work is cut by the problem alone (rows, columns, heads, positions), never by the number of threads, so the bytes of a
// result are the same for any --threads. Calls are not deferred.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/isa/kernels.h"
#include "base/context.h"
#include "base/error.h"
#include "ops/ops.h"

namespace h3 {

isa::Elem elem_of(DType type);  // asserts f32, bf16 or f16

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Rows of activations that a linear packs at a time: longer inputs run in chunks.
inline constexpr int64_t kMaxPackedRows = 2048;

// Carves aligned pieces out of one buffer. With a null base it only adds up sizes.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(int64_t count) {
    std::byte* p = base_ == nullptr ? nullptr : base_ + used_;
    used_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return reinterpret_cast<T*>(p);
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

class CpuOps final : public Ops {
 public:
  CpuOps(Context& context, IsaLevel level, const std::string& forced_linear);
  const char* name() const override { return name_.c_str(); }
  Device& device() override { return device_; }
  Context& context() override { return context_; }
  void sync() override {}

  std::unique_ptr<Linear> make_linear(LinearSpec spec) override;
  std::unique_ptr<Conv> make_conv(ConvSpec spec) override;
  void reserve(int64_t max_rows, int64_t max_heads_by_dim) override;

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
  void conv(const Conv& conv, const View& x, const View& y) override;
  void group_norm_silu(const View& x, int groups, const View& w, const View& b, float eps, const View& y) override;
  void snake(const View& x, const View& a, const View& inv, const View& y) override;
  void aa_snake(const View& x, const View& a, const View& inv, const View& up, const View& down,
                const View& y) override;
  void l1_pair(const View& a, const View& b, const View& out) override;
  void check_finite(const View& x, const View& flags) override;

 private:
  // Scratch made at prepare time; an unprepared larger call grows it.
  void need_shared(int64_t bytes);
  void need_local(int64_t bytes_per_thread);
  std::byte* shared() { return static_cast<std::byte*>(shared_.data()); }
  std::byte* local(int worker) { return static_cast<std::byte*>(local_.data()) + worker * local_bytes_; }

  // body(begin, end) over [0, rows) in pieces of about 32 K elements of `length` each, in parallel.
  void for_row_pieces(int64_t rows, int64_t length, const std::function<void(int64_t, int64_t)>& body);

  bool all_finite(const View& x);
  void gated(const isa::GateNormArgs& args, int64_t rows);
  // add_scale: null for y = x W^T + b, else y += *add_scale * (x W^T + b).
  void linear_rows(const Linear& weight, const float* add_scale, const View& x, const View& y);
  void linear_chunk(const Linear& weight, const float* add_scale, const View& x, const View& y);

  Context& context_;
  HostDevice device_;
  IsaLevel level_;
  isa::Level kernels_;
  std::string name_, forced_linear_;  // forced: a kernel of matmul.h; empty = the best
  Buffer shared_, local_;
  int64_t local_bytes_ = 0;
  int64_t row_bytes_ = 0;        // most bytes that a row of activations takes when packed, over all linears made
  int64_t reserved_rows_ = 256;  // rows assumed for linears that do not state theirs
};

}  // namespace h3
