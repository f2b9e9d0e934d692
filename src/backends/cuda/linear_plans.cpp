#include "backends/cuda/linear_plans.h"

#include <algorithm>
#include <utility>

#include "backends/cuda/check.h"
#include "backends/cuda/plan_check.h"
#include "backends/cuda/weight_upload.h"
#include "base/error.h"
#include "ops/stored.h"

namespace h3::cuda {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;
constexpr int64_t kExpandBytes = int64_t{128} << 20;     // packed weights expanded at a time
constexpr int64_t kRowScratchBytes = int64_t{64} << 20;  // activations cast, results not yet rounded
constexpr int64_t kExpandRows = 256;                     // at a multiple of these: whole tiles of the matmul
constexpr int64_t kFewOutputs = 512;

cudaDataType_t blas_type(DType type) {
  switch (type) {
    case DType::f32: return CUDA_R_32F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    case DType::i8: return CUDA_R_8I;
    case DType::u8: return CUDA_R_8F_E4M3;
    case DType::i32: return CUDA_R_32I;
    default: H3_ASSERT(false); return CUDA_R_32F;
  }
}

DType operand_type(Compute compute) {
  switch (compute) {
    case Compute::f32: return DType::f32;
    case Compute::f16: return DType::f16;
    case Compute::int8: return DType::i8;
    case Compute::packed: return DType::bf16;  // of the bias; the operands have the type of the activations
    case Compute::bf16: break;
  }
  return DType::bf16;
}

}  // namespace

struct CudaLinear::Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  ~Plan() {
    const BlasLt& blas = blas_lt();
    if (a != nullptr) blas.cublasLtMatrixLayoutDestroy(a);
    if (b != nullptr) blas.cublasLtMatrixLayoutDestroy(b);
    if (d != nullptr) blas.cublasLtMatrixLayoutDestroy(d);
    if (operation != nullptr) blas.cublasLtMatmulDescDestroy(operation);
  }
};

CudaLinear::~CudaLinear() = default;

const void* CudaLinear::operands() const {
  return group != nullptr ? group->base() + offset : static_cast<const std::byte*>(data.data());
}

LinearPlans::LinearPlans(CudaOps& ops) : ops_(ops) {
  check(blas_lt().cublasLtCreate(&handle_), "creating the handle");
  workspace_ = ops_.device_.allocate(kWorkspaceBytes, "cuBLASLt workspace");
  algorithms_ = std::make_unique<Algorithms>(handle_, kWorkspaceBytes);
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ops_.index_), "the compute capability");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ops_.index_), "the compute capability");
  capability_ = 10 * major + minor;
  float8_ = capability_ >= 89;
  row_scales_ = major == 9;
}

LinearPlans::~LinearPlans() { blas_lt().cublasLtDestroy(handle_); }

LinearPlans::Kind LinearPlans::kind_of(const Linear& weight, const MatrixSource& source) {
  return {static_cast<int>(source.format()), weight.in, weight.out, static_cast<int>(weight.compute)};
}

std::unique_ptr<Linear> LinearPlans::make(LinearSpec spec) {
  for (Fed& fed : fed_) fed = {};  // a reader that is gone may have had the new one's address
  auto linear = std::make_unique<CudaLinear>();
  auto* group = static_cast<StreamGroup*>(spec.group);
  linear->group = group;
  linear->label = std::move(spec.label);
  linear->in = spec.weight.cols;
  linear->out = spec.weight.rows;
  linear->compute = spec.compute;
  linear->operand = operand_type(spec.compute);
  linear->in_padded = linear->in;
  linear->out_padded = linear->out;
  if (linear->operand == DType::i8) {
    linear->in_padded = (linear->in + 15) / 16 * 16;
    linear->out_padded = (linear->out + 15) / 16 * 16;
  }
  if (kept_as_stored(spec.weight, spec.compute)) {
    linear->packed = upload_packed(ops_.device_, spec.weight, group, linear->label.c_str());
    linear->float8_activations = fits_float8(*linear);
    linear->nvfp4_activations = fits_nvfp4(*linear);
    if (linear->float8_activations || linear->nvfp4_activations) {
      linear->kernel = linear->nvfp4_activations ? "cublaslt_nvfp4" : "cublaslt_e4m3";
      upload_output_scales(*linear, spec.weight);
    } else {
      linear->kernel = std::string("expand_") + row_of(spec.weight.format()).name + "_cublaslt";
      linear->rounds_weights = spec.compute == Compute::packed;
      ops_.scratch(kExpansionScratch, expansion_bytes(spec.weight, spec.compute));
    }
  } else {
    linear->kernel = std::string("cublaslt_") + (linear->operand == DType::i8 ? "int8" : name_of(linear->operand));
    upload_operands(ops_, *linear, spec.weight, group);
  }
  upload_bias(ops_, *linear, spec.bias);
  std::weak_ptr<int>& witness = witnesses_[kind_of(*linear, spec.weight)];
  if (witness.expired()) {
    witness = linear->witness = std::make_shared<int>(0);
    linear->source = std::move(spec.weight);
  }
  linear->bytes =
      linear->data.bytes() + linear->scales.bytes() + linear->bias_f32.bytes() + linear->bias_epilogue.bytes();
  for (const PackedSegment& segment : linear->packed) linear->bytes += segment.bytes.bytes();
  return linear;
}

// Row-major y = x W^T is column-major D[out, rows] = W^T[out, in] X[in, rows] with leading dimensions in, ldx, ldy.
std::shared_ptr<CudaLinear::Plan> LinearPlans::plan(const CudaLinear& weight, const Matmul& m) {
  const int extra = m.bias != nullptr ? 1 : m.x_scale != nullptr ? 2 : m.x_blocks != nullptr ? 3 : 0;
  const int types = (static_cast<int>(m.operand) * 16 + static_cast<int>(m.out)) * 4 + extra;
  const auto key = std::make_tuple(m.rows, m.outs, m.ldx, m.ldy, types);
  if (std::exchange(weight.generation, algorithms_->generation()) != algorithms_->generation()) weight.plans.clear();
  const auto found = weight.plans.find(key);
  if (found != weight.plans.end()) return found->second;
  const BlasLt& blas = blas_lt();
  auto plan = std::make_shared<CudaLinear::Plan>();
  const bool integer = m.operand == DType::i8;
  check(blas.cublasLtMatmulDescCreate(&plan->operation, integer ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F,
                                      integer ? CUDA_R_32I : CUDA_R_32F),
        "describing a matmul");
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check(blas.cublasLtMatmulDescSetAttribute(plan->operation, attribute, &value, sizeof value), "describing a matmul");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, cublasOperation_t{CUBLAS_OP_T});
  if (m.bias != nullptr) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, cublasLtEpilogue_t{CUBLASLT_EPILOGUE_BIAS});
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, m.bias);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, blas_type(m.out));
  }
  if (m.x_scale != nullptr) {
    const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, m.w_scale);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, m.x_scale);
  }
  if (m.x_blocks != nullptr) {
    const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, m.w_blocks);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, m.x_blocks);
  }
  const cudaDataType_t operand = m.x_blocks != nullptr ? CUDA_R_4F_E2M1 : blas_type(m.operand);
  const auto layout = [&](cublasLtMatrixLayout_t* matrix, cudaDataType_t type, int64_t rows, int64_t cols, int64_t ld) {
    check(blas.cublasLtMatrixLayoutCreate(matrix, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), ld),
          "a matrix layout");
  };
  layout(&plan->a, operand, weight.in_padded, m.outs, weight.in_padded);
  layout(&plan->b, operand, weight.in_padded, m.rows, m.ldx);
  layout(&plan->d, blas_type(m.out), m.outs, m.rows, m.ldy);
  plan->algorithm = algorithm_for(weight, m, *plan);
  weight.plans.emplace(key, plan);
  return plan;
}

cublasLtMatmulAlgo_t LinearPlans::algorithm_for(const CudaLinear& weight, const Matmul& m,
                                                const CudaLinear::Plan& plan) {
  const std::string kind =
      strf("%lldx%lld ", static_cast<long long>(weight.in_padded), static_cast<long long>(m.outs)) + m.kind();
  const bool few = m.outs <= kFewOutputs && m.operand == DType::bf16;
  return algorithms_->choose({kind, m.rows, m.ldx, m.ldy, few, plan.operation, plan.a, plan.b, plan.d}, weight.label);
}

std::string LinearPlans::Matmul::kind() const {
  const char* const extra = bias != nullptr ? " bias" : x_scale != nullptr ? " scales" : "";
  return strf("%s>%s%s", x_blocks != nullptr ? "nvfp4" : name_of(operand), name_of(out), extra);
}

void LinearPlans::matmul(const CudaLinear& weight, const Matmul& m) {
  const std::shared_ptr<CudaLinear::Plan> chosen = plan(weight, m);
  const auto set_pointer = [&](cublasLtMatmulDescAttributes_t attribute, const void* pointer) {
    if (pointer == nullptr) return;  // parts of one weight share a plan
    check(blas_lt().cublasLtMatmulDescSetAttribute(chosen->operation, attribute, &pointer, sizeof pointer),
          "describing a matmul");
  };
  set_pointer(CUBLASLT_MATMUL_DESC_BIAS_POINTER, m.bias);
  set_pointer(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
              m.w_blocks != nullptr ? static_cast<const void*>(m.w_blocks) : m.w_scale);
  set_pointer(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
              m.x_blocks != nullptr ? static_cast<const void*>(m.x_blocks) : m.x_scale);
  const float scale = m.scale, keep = m.add ? 1 : 0;
  const int32_t int_one = 1, int_zero = 0;
  const bool integer = m.operand == DType::i8;
  const void* alpha = integer ? static_cast<const void*>(&int_one) : &scale;
  const void* beta = integer ? static_cast<const void*>(&int_zero) : &keep;
  check(blas_lt().cublasLtMatmul(handle_, chosen->operation, alpha, m.w, chosen->a, m.x, chosen->b, beta, m.y,
                                 chosen->d, m.y, chosen->d, &chosen->algorithm, workspace_.data(),
                                 static_cast<size_t>(workspace_.bytes()), ops_.stream()),
        weight.label.c_str());
}

namespace {

DType operand_of(const CudaLinear& weight, const View& x) {
  return weight.compute == Compute::packed && !weight.packed.empty() ? x.type : weight.operand;
}

// Operands of another type, or where cuBLASLt cannot read them.
bool needs_cast(const View& x, DType type) {
  const int64_t pitch = x.stride[0] * size_of(x.type);
  return x.type != type || (reinterpret_cast<uintptr_t>(x.data) | static_cast<uintptr_t>(pitch)) % 16 != 0;
}

// f32 operands give f32 only; narrow results of f32 operands and biases that do not fit go through f32.
bool writes_directly(const CudaLinear& weight, DType type, const View& y) {
  const bool fits = weight.bias_epilogue.data() != nullptr && weight.epilogue_type == y.type;
  const bool direct_bias = weight.bias_f32.data() == nullptr || y.type == DType::f32 || fits;
  return direct_bias && (y.type == type || y.type == DType::f32);
}

// Even shares of the outputs, whole tiles, that fit the expansion scratch.
int64_t expansion_rows(const CudaLinear& weight, DType type) {
  const int64_t bytes = weight.out * weight.in * size_of(type), shares = (bytes + kExpandBytes - 1) / kExpandBytes;
  if (shares <= 1) return weight.out;
  const int64_t fit = std::max<int64_t>(1, kExpandBytes / (weight.in * size_of(type)) / kExpandRows) * kExpandRows;
  const int64_t even = ((weight.out + shares - 1) / shares + kExpandRows - 1) / kExpandRows * kExpandRows;
  return std::min(fit, even);
}

}  // namespace

// Long inputs are multiplied in parts, so that what a call needs beside its operands is bounded (scratch_bytes).
int64_t LinearPlans::rows_at_once(const CudaLinear& weight, const View& x, const View& y) const {
  int64_t row = 0, limit = kRowScratchBytes;
  if (weight.operand == DType::i8) {
    row = weight.in_padded + 4 * weight.out_padded + 4;
    limit = kQuantisedBytes;
  } else if (weight.float8_activations || weight.nvfp4_activations) {
    row = weight.nvfp4_activations ? nvfp4_row_bytes(weight) : float8_row_bytes(weight, y);
    limit = kQuantisedBytes;
  } else {
    const DType type = operand_of(weight, x);
    if (needs_cast(x, type)) row = weight.in * size_of(type);
    if (!writes_directly(weight, type, y)) row = std::max(row, 4 * weight.out);
  }
  if (row == 0 || x.dim[0] * row <= limit) return x.dim[0];
  return std::max<int64_t>(limit / row / kExpandRows * kExpandRows, kExpandRows);
}

int64_t LinearPlans::scratch_bytes(Compute compute) const {
  const bool quantised = compute == Compute::int8 || compute == Compute::packed;
  return (quantised ? kQuantisedBytes : kRowScratchBytes) + kRowScratchBytes +
         (compute == Compute::packed && row_scales_ ? 2 * kFedBytes : 0);
}

int64_t LinearPlans::expansion_bytes(const MatrixSource& weight, Compute compute) {
  if (!kept_as_stored(weight, compute)) return 0;
  return std::min(kExpandBytes, weight.rows * weight.cols * (compute == Compute::packed ? 4 : 2));
}

void LinearPlans::run_int8(const CudaLinear& weight, const View& x, const View& y, bool onto) {
  const int64_t rows = x.dim[0];
  // One allocation serves the quantised rows, their scales and the accumulators.
  const int64_t q_bytes = (rows * weight.in_padded + 255) / 256 * 256, scale_bytes = (rows * 4 + 255) / 256 * 256;
  const int64_t acc_bytes = rows * weight.out_padded * 4;
  auto* base = static_cast<std::byte*>(ops_.scratch(kOperandScratch, q_bytes + scale_bytes + acc_bytes));
  auto* q = reinterpret_cast<int8_t*>(base);
  auto* scale = reinterpret_cast<float*>(base + q_bytes);
  auto* acc = reinterpret_cast<int32_t*>(base + q_bytes + scale_bytes);
  quantise_rows(ops_.stream(), x, q, weight.in_padded, scale);
  matmul(weight, {.w = weight.operands(),
                  .x = q,
                  .y = acc,
                  .rows = rows,
                  .outs = weight.out_padded,
                  .ldx = weight.in_padded,
                  .ldy = weight.out_padded,
                  .operand = DType::i8,
                  .out = DType::i32});
  dequantise_rows(ops_.stream(), acc, weight.out_padded, scale, static_cast<const float*>(weight.scales.data()),
                  static_cast<const float*>(weight.bias_f32.data()), y, onto);
}

// Output rows of a packed weight in the operand type. They lie in scratch until the next call: the stream orders the
// matmul that reads them before it.
const void* LinearPlans::expanded(const CudaLinear& weight, int64_t first, int64_t count, DType type) {
  const PackedSegment& whole = weight.packed.front();
  if (weight.packed.size() == 1 && whole.format == stored_as(type) && whole.planes[4] < 0) {
    const auto* base = static_cast<const std::byte*>(whole.bytes.data());
    if (weight.group != nullptr) base = weight.group->base();
    return base + whole.planes[0] + first * weight.in * size_of(type);
  }
  void* scratch = ops_.scratch(kExpansionScratch, count * weight.in * size_of(type));
  expand_packed(ops_.stream(), weight.packed, weight.group, first, count, scratch, type);
  return scratch;
}

void LinearPlans::run_float(const CudaLinear& weight, const View& x, const View& y, bool onto) {
  const bool packed = !weight.packed.empty();
  const int64_t rows = x.dim[0];
  const DType type = operand_of(weight, x);
  const void* operand = x.data;
  int64_t ldx = x.stride[0];
  if (needs_cast(x, type) || rows == 1) {
    operand = ops_.scratch(kOperandScratch, rows * weight.in * size_of(type));
    cast_rows(ops_.stream(), x, const_cast<void*>(operand), type, weight.compute == Compute::f16);
    ldx = weight.in;
  }
  const auto* bias = static_cast<const float*>(weight.bias_f32.data());
  const bool direct = writes_directly(weight, type, y) && rows > 1;
  const auto* added = static_cast<const std::byte*>(y.type == DType::f32 ? bias : weight.bias_epilogue.data());
  auto* target = direct ? y.data : static_cast<std::byte*>(ops_.scratch(kResultScratch, rows * weight.out * 4));
  const DType out = direct ? y.type : DType::f32;
  const int64_t step = packed ? expansion_rows(weight, type) : weight.out;
  for (int64_t first = 0; first < weight.out; first += step) {
    const int64_t count = std::min(step, weight.out - first);
    matmul(weight, {.w = packed ? expanded(weight, first, count, type) : weight.operands(),
                    .x = operand,
                    .bias = direct && bias != nullptr ? added + first * size_of(out) : nullptr,
                    .y = target + first * size_of(out),
                    .rows = rows,
                    .outs = count,
                    .ldx = ldx,
                    .ldy = direct ? y.stride[0] : weight.out,
                    .operand = type,
                    .out = out,
                    .add = direct && onto});
  }
  if (!direct) add_bias_round(ops_.stream(), reinterpret_cast<const float*>(target), bias, y, onto);
}

void LinearPlans::run(const CudaLinear& weight, const View& x, const View& y, bool onto) {
  H3_ASSERT(x.rank == 2 && y.rank == 2 && x.dim[0] == y.dim[0] && x.dim[1] == weight.in && y.dim[1] == weight.out);
  const Float8Rows waiting = weight.float8_activations ? waiting_rows(weight, x) : Float8Rows{};
  const int64_t step = rows_at_once(weight, x, y);
  for (int64_t first = 0; first < x.dim[0]; first += step) {
    const int64_t count = std::min(step, x.dim[0] - first);
    const View part = x.slice(0, first, count), result = y.slice(0, first, count);
    if (weight.operand == DType::i8) {
      run_int8(weight, part, result, onto);
    } else if (weight.float8_activations) {
      run_float8(weight, part, result, onto, waiting.from(first));
    } else if (weight.nvfp4_activations) {
      run_nvfp4(weight, part, result, onto);
    } else {
      run_float(weight, part, result, onto);
    }
    if (!onto && !waiting.alone) check_first(weight, part, result);
  }
}

void LinearPlans::check_first(const CudaLinear& weight, const View& x, const View& y) {
  if (weight.witness == nullptr || x.data == y.data) return;  // in place the operands are gone
  const int types = static_cast<int>(x.type) * 16 + static_cast<int>(y.type);
  if (!checked_.emplace(kind_of(weight, weight.source), x.dim[0], types).second) return;
  check_plan(weight, x, y);
}

void LinearPlans::use(std::shared_ptr<const PlanChoices> choices) {
  algorithms_->use(std::move(choices));
  checked_.clear();
}

// The factor is the library's where operands and result are of one type.
bool LinearPlans::run_scaled(const CudaLinear& weight, float scale, const View& x, const View& y) {
  H3_ASSERT(x.rank == 2 && y.rank == 2 && x.dim[0] == y.dim[0] && x.dim[1] == weight.in && y.dim[1] == weight.out);
  H3_ASSERT(x.type == y.type && weight.packed.empty() && weight.bias_f32.data() == nullptr);
  if (x.type != weight.operand || needs_cast(x, weight.operand) || x.dim[0] <= 1) return false;
  matmul(weight, {.w = weight.operands(),
                  .x = x.data,
                  .y = y.data,
                  .rows = x.dim[0],
                  .outs = weight.out,
                  .ldx = x.stride[0],
                  .ldy = y.stride[0],
                  .operand = weight.operand,
                  .out = y.type,
                  .scale = scale});
  return true;
}

void LinearPlans::run_add(const CudaLinear& weight, float scale, const View& x, const View& y) {
  H3_ASSERT(x.rank == 2 && y.rank == 2 && x.dim[0] == y.dim[0] && x.dim[1] == weight.in && y.dim[1] == weight.out);
  H3_ASSERT(x.type == y.type && weight.packed.empty() && weight.bias_f32.data() == nullptr);
  if (x.dim[0] == 0) return;
  if (weight.operand == DType::bf16 && x.type == DType::bf16) {
    return linear_add_bf16(ops_.stream(), weight.operands(), x, scale, y);
  }
  const void* operand = x.data;
  int64_t ldx = x.stride[0];
  const bool aligned = (reinterpret_cast<uintptr_t>(x.data) | static_cast<uintptr_t>(ldx * size_of(x.type))) % 16 == 0;
  if (x.type != weight.operand || !aligned || x.dim[0] == 1) {
    operand = ops_.scratch(kOperandScratch, x.dim[0] * weight.in * size_of(weight.operand));
    cast_rows(ops_.stream(), x, const_cast<void*>(operand), weight.operand, false);
    ldx = weight.in;
  }
  Matmul m{.w = weight.operands(),
           .x = operand,
           .y = y.data,
           .rows = x.dim[0],
           .outs = weight.out,
           .ldx = ldx,
           .ldy = y.stride[0],
           .operand = weight.operand,
           .out = y.type,
           .scale = scale,
           .add = true};
  if (y.type != weight.operand && y.type != DType::f32) {  // f32 operands give f32 only
    m.y = ops_.scratch(kResultScratch, x.dim[0] * weight.out * 4);
    m.ldy = weight.out;
    m.out = DType::f32;
    m.add = false;
    matmul(weight, m);
    add_rows(ops_.stream(), static_cast<const float*>(m.y), y);
    return;
  }
  matmul(weight, m);
}

std::unique_ptr<Linear> CudaOps::make_linear(LinearSpec spec) { return plans_->make(std::move(spec)); }

void CudaOps::linear_add(const Linear& weight, float scale, const View& x, const View& y) {
  plans_->run_add(static_cast<const CudaLinear&>(weight), scale, x, y);
}

void CudaOps::linear_scaled(const Linear& weight, float scale, const View& x, const View& y) {
  if (!plans_->run_scaled(static_cast<const CudaLinear&>(weight), scale, x, y)) Ops::linear_scaled(weight, scale, x, y);
}

void CudaOps::linear(const Linear& weight, const View& x, const View& y) {
  plans_->run(static_cast<const CudaLinear&>(weight), x, y, false);
}

void CudaOps::linear_onto(const Linear& weight, const View& x, const View& y) {
  plans_->run(static_cast<const CudaLinear&>(weight), x, y, true);
}

}  // namespace h3::cuda
