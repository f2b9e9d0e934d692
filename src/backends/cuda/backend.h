// CudaOps: the semantic operations on one card and one stream. Bodies are in kernels/*.cu (own kernels),
// linear_plans.cpp (cuBLASLt) and attention_dnn.cpp (cuDNN).
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "backends/cuda/cuda_ops.h"
#include "backends/cuda/libraries.h"
#include "backends/cuda/memory.h"
#include "base/context.h"
#include "codec/noise.h"
#include "ops/ops.h"
#include "ops/plan_maker.h"

namespace h3::cuda {

// Owned library handles.
struct StreamOwner {
  cudaStream_t stream = nullptr;
  StreamOwner();
  ~StreamOwner();
  StreamOwner(const StreamOwner&) = delete;
  StreamOwner& operator=(const StreamOwner&) = delete;
};

struct EventOwner {
  cudaEvent_t event = nullptr;
  explicit EventOwner(unsigned flags = cudaEventDisableTiming);
  ~EventOwner();
  EventOwner(const EventOwner&) = delete;
  EventOwner& operator=(const EventOwner&) = delete;
};

// Of CudaOps::scratch: what may be in use at one time has slots of its own.
enum ScratchSlot : int {
  kOperandScratch,    // operands cast or quantised and their accumulators
  kResultScratch,     // results before their rounding
  kReduceScratch,     // parts of reductions
  kSnakeScratch,      // a result of aa_snake that replaces its input
  kExpansionScratch,  // packed weights expanded; operands of convolutions
  kAttentionScratch,  // codes or summaries of attention; results of convolutions
  kFedScratch,        // and the next: rows in their reader's form, by FedBy
  kScratchSlots = kFedScratch + 2
};

// Rows in the form of an eight-bit matmul (codec/float8_row.h), beside their values or, alone, in their place.
struct Float8Rows {
  uint8_t* codes = nullptr;  // nullptr: not wanted
  int64_t pitch = 0;         // bytes from row to row
  float* scale = nullptr;    // [rows]
  bool alone = false;        // the values are not read
  Float8Rows from(int64_t row) const {
    return codes == nullptr ? *this : Float8Rows{codes + row * pitch, pitch, scale + row, alone};
  }
};
enum class FedBy : uint8_t { norm, swiglu };

class LinearPlans;   // linear_plans.h
class DnnAttention;  // attention_dnn.h
class WeightStream;  // weight_stream.h

class CudaOps final : public Ops {
 public:
  CudaOps(Context& context, int index, CudaAttention attention);
  ~CudaOps() override;

  const char* name() const override { return device_.name(); }
  Device& device() override { return device_; }
  Context& context() override { return context_; }
  void sync() override;
  void pace() override;
  std::unique_ptr<Recording> record(const std::function<void()>& calls) override;
  PlanMaker* plan_maker() override;

  std::unique_ptr<Linear> make_linear(LinearSpec spec) override;
  std::unique_ptr<WeightGroup> make_group() override;
  int64_t linear_bytes(const MatrixSource& weight, Compute compute) const override;
  int64_t scratch_bytes(Compute compute) const override;
  bool multiplies_float8() const override;
  std::string refuses_nvfp4() const override;
  int64_t expansion_bytes(const MatrixSource& weight, Compute compute) const override;
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
  void feeds(const Linear& reader, bool alone) override;
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
  std::string refuses_eight_bit(int64_t head_dim) const override;
  int64_t eight_bit_bytes(int64_t rows, int64_t heads, int64_t head_dim) const override;
  void sparse_attention(const SparseAttentionArgs& args) override;
  int64_t sparse_attention_bytes(int64_t rows, int64_t heads, int64_t head_dim, DType type) const override;
  void conv(const Conv& conv, const View& x, const View& y) override;
  void group_norm_silu(const View& x, int groups, const View& w, const View& b, float eps, const View& y) override;
  void snake(const View& x, const View& a, const View& inv, const View& y) override;
  void aa_snake(const View& x, const View& a, const View& inv, const View& up, const View& down,
                const View& y) override;
  void blend_tile(const TileBlend& args) override;
  void to_unit_range(const View& x, const View& std, const View& mean, const View& y) override;
  void l1_pair(const View& a, const View& b, const View& out) override;
  void check_finite(const View& x, const View& flags) override;

  cudaStream_t stream() const { return owner_.stream; }
  // Scratch of at least this size, grown outside the step loop; contents do not survive the next call. `slot`: a
  // ScratchSlot. What a recording uses lives as long as it does.
  void* scratch(int slot, int64_t bytes);

 private:
  friend class LinearPlans;
  // What the op that was hinted at makes of its rows beside their values; linear_float8.cpp. `vectors`: it could.
  Float8Rows fed_rows(FedBy op, const View& rows, bool vectors);
  void attention_generic(const AttentionArgs& args);  // kernels/attention.cu

  Context& context_;
  int index_;
  CudaAttention attention_;
  StreamOwner owner_;
  CudaDevice device_;
  std::unique_ptr<LinearPlans> plans_;
  std::unique_ptr<DnnAttention> dnn_;
  std::unique_ptr<PlanMaker> plan_maker_;      // made when it is first asked for
  std::weak_ptr<WeightStream> weight_stream_;  // of the groups there are
  EventOwner paces_[2];                        // the last calls of pace()
  int next_pace_ = 0;
  std::shared_ptr<Buffer> scratch_[kScratchSlots];
};

// Casts, int8 and synthetic weights: kernels/quantise.cu.
// dst[i] = round(noise_value(noise, first + i)).
void fill_noise(cudaStream_t stream, const NoiseWeights& noise, int64_t first, int64_t count, void* dst, DType type);
void cast_rows(cudaStream_t stream, const View& src, void* dst, DType type, bool saturate);  // dst [rows, cols] dense
void add_rows(cudaStream_t stream, const float* sum, const View& y);  // y = round(y + sum), sum [rows, cols] dense
// Here and below, onto: the result is added to what y holds, before the rounding.
void add_bias_round(cudaStream_t stream, const float* acc, const float* bias, const View& y,
                    bool onto);  // acc [rows, cols] dense
// kernels/linear_add.cu: y = round(y + scale * (x W^T)), all bf16; w [outs, in] dense.
void linear_add_bf16(cudaStream_t stream, const void* w, const View& x, float scale, const View& y);
// q [rows, cols] dense, codes of e4m3 (codec/float8_row.h); a multiple of 8 columns.
void quantise_float8_rows(cudaStream_t stream, const View& x, uint8_t* q, float* scale);
// kernels/quantise_nvfp4.cu: Ops::quantise_nvfp4 to dense memory.
void quantise_nvfp4_rows(cudaStream_t stream, const View& x, float* factor, uint8_t* codes, uint8_t* scales);
// y = round(acc * row_scale * column_scale + bias); acc [rows, pitch].
void scale_rows(cudaStream_t stream, const float* acc, int64_t pitch, const float* row_scale, const float* column_scale,
                const float* bias, const View& y, bool onto);
// q [rows, pitch], zeros beyond the columns of x; acc [rows, pitch].
void quantise_rows(cudaStream_t stream, const View& x, int8_t* q, int64_t pitch, float* scale);
void dequantise_rows(cudaStream_t stream, const int32_t* acc, int64_t pitch, const float* row_scale,
                     const float* column_scale, const float* bias, const View& y, bool onto);

}  // namespace h3::cuda
