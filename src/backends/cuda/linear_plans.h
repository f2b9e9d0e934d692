// Matmuls through cuBLASLt: operands packed at load, descriptors and algorithm chosen once per (weight, rows, strides).
#pragma once

#include <map>
#include <memory>
#include <set>
#include <tuple>

#include "backends/cuda/algorithms.h"
#include "backends/cuda/backend.h"
#include "backends/cuda/packed_weights.h"

namespace h3::cuda {

inline constexpr int64_t kQuantisedBytes = int64_t{256} << 20;  // activations quantised and their accumulators
inline constexpr int kNvfp4Capability = 100;                    // from here on tensor cores multiply nvfp4
inline constexpr int64_t kFedBytes = int64_t{32} << 20;         // codes of rows whose values are kept too, for each op

// A weight on the card. `data` holds [out, in] in the operand type; int8 adds one f32 scale per output. Packed weights
// are in `packed` instead, and their operand type is that of the activations, or e4m3 or nvfp4 with one f32 scale per
// output.
struct CudaLinear final : Linear {
  DType operand = DType::f32;
  int64_t in_padded = 0, out_padded = 0;  // int8 operands are padded with zeros to multiples of 16
  Buffer data, scales, bias_f32, bias_epilogue;
  std::vector<PackedSegment> packed;
  const StreamGroup* group = nullptr;  // what the operands travel with, from `offset` on; nullptr: they are in data
  int64_t offset = 0;
  const void* operands() const;
  MatrixSource source;               // of the first weight of its kind, whose plans are checked; else empty
  std::shared_ptr<int> witness;      // set while it is that
  DType epilogue_type = DType::f32;  // type of bias_epilogue: exact in it, so cuBLASLt may add it
  // Plans by (rows, outputs, row strides, types); filled on first use of a shape.
  struct Plan;
  mutable int64_t generation = 0;  // of the choices that they were made with
  mutable std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, int>, std::shared_ptr<Plan>> plans;
  ~CudaLinear() override;
};

class LinearPlans {
 public:
  explicit LinearPlans(CudaOps& ops);
  ~LinearPlans();
  std::unique_ptr<Linear> make(LinearSpec spec);
  void run(const CudaLinear& weight, const View& x, const View& y, bool onto);           // onto: Ops::linear_onto
  void run_add(const CudaLinear& weight, float scale, const View& x, const View& y);     // y += scale * x W^T
  bool run_scaled(const CudaLinear& weight, float scale, const View& x, const View& y);  // false: not in one call
  void feeds(const CudaLinear& reader, bool alone);                                      // Ops::feeds
  Float8Rows fed_rows(FedBy op, const View& rows, bool vectors);
  Algorithms& algorithms() { return *algorithms_; }
  void use(std::shared_ptr<const PlanChoices> choices);  // PlanMaker::use: the plans are made and checked anew
  int64_t scratch_bytes(Compute compute) const;          // at most, of CudaOps::scratch
  static int64_t expansion_bytes(const MatrixSource& weight, Compute compute);
  bool multiplies_float8() const { return float8_; }
  bool multiplies_nvfp4() const { return capability_ >= kNvfp4Capability; }
  int capability() const { return capability_; }  // 90: compute capability 9.0

 private:
  // y [rows, outs] = x [rows, in] w^T (+ bias), operands of one type.
  struct Matmul {
    const void *w = nullptr, *x = nullptr, *bias = nullptr;
    void* y = nullptr;
    int64_t rows = 0, outs = 0, ldx = 0, ldy = 0;
    DType operand = DType::f32, out = DType::f32;  // operand u8: codes of e4m3, or of nvfp4
    float scale = 1;
    bool add = false;                                        // to what y holds
    const float *w_scale = nullptr, *x_scale = nullptr;      // [outs] and [rows], both or none: factors of the sums
    const uint8_t *w_blocks = nullptr, *x_blocks = nullptr;  // of nvfp4: scales of blocks, swizzled (codec/nvfp4.h)
    std::string kind() const;                                // all but sizes, addresses and factors
  };
  std::shared_ptr<CudaLinear::Plan> plan(const CudaLinear& weight, const Matmul& m);
  cublasLtMatmulAlgo_t algorithm_for(const CudaLinear& weight, const Matmul& m, const CudaLinear::Plan& plan);
  void matmul(const CudaLinear& weight, const Matmul& m);
  int64_t rows_at_once(const CudaLinear& weight, const View& x, const View& y) const;
  void run_int8(const CudaLinear& weight, const View& x, const View& y, bool onto);
  void run_float(const CudaLinear& weight, const View& x, const View& y, bool onto);
  // linear_float8.cpp
  bool fits_float8(const CudaLinear& weight) const;
  void upload_output_scales(CudaLinear& weight, const MatrixSource& source);
  int64_t float8_row_bytes(const CudaLinear& weight, const View& y) const;  // of scratch
  void run_float8(const CudaLinear& weight, const View& x, const View& y, bool onto, Float8Rows form);
  void multiply_float8(const CudaLinear& weight, const Float8Rows& x, const View& y, bool onto, float* sums);
  Float8Rows waiting_rows(const CudaLinear& weight, const View& x);
  // linear_nvfp4.cpp
  bool fits_nvfp4(const CudaLinear& weight) const;
  int64_t nvfp4_row_bytes(const CudaLinear& weight) const;  // of scratch
  void run_nvfp4(const CudaLinear& weight, const View& x, const View& y, bool onto);
  const void* expanded(const CudaLinear& weight, int64_t first, int64_t count, DType type);
  CudaOps& ops_;
  void check_first(const CudaLinear& weight, const View& x, const View& y);

  cublasLtHandle_t handle_ = nullptr;
  std::unique_ptr<Algorithms> algorithms_;
  int capability_ = 0;
  bool float8_ = false, row_scales_ = false;  // the card multiplies e4m3; the library applies scales per row and output
  // Rows that wait for their reader in its form, one for each op that makes them.
  struct Fed {
    const CudaLinear* reader = nullptr;
    View rows;
    Float8Rows form;
  };
  Fed fed_[2];
  Fed hint_;  // of the next op; only reader and form.alone
  // The first weight of each kind (format, inputs, outputs, compute type) checks the plans of all: of new kind and
  // rows, the first result is compared with the host.
  using Kind = std::tuple<int, int64_t, int64_t, int>;
  static Kind kind_of(const Linear& weight, const MatrixSource& source);
  std::map<Kind, std::weak_ptr<int>> witnesses_;
  std::set<std::tuple<Kind, int64_t, int>> checked_;
  Buffer workspace_;
};

}  // namespace h3::cuda
