#include "backends/cuda/attention_dnn.h"

#include <cudnn.h>

#include <array>

#include "backends/cuda/check.h"
#include "backends/cuda/libraries.h"
#include "base/error.h"

namespace h3::cuda {
namespace {

enum : int64_t { kQ = 1, kK, kV, kO, kScale };

// An owned backend descriptor.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    check(dnn().cudnnBackendCreateDescriptor(type, &value_), "creating a descriptor");
  }
  ~Descriptor() {
    if (value_ != nullptr) dnn().cudnnBackendDestroyDescriptor(value_);
  }
  Descriptor(Descriptor&& other) noexcept : value_(other.value_) { other.value_ = nullptr; }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  cudnnBackendDescriptor_t get() const { return value_; }
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values) {
    check(dnn().cudnnBackendSetAttribute(value_, name, type, count, values), "setting an attribute");
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    const cudnnBackendDescriptor_t raw = other.get();
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
  }
  void finalize() { check(dnn().cudnnBackendFinalize(value_), "finalizing a descriptor"); }
  bool try_finalize() { return dnn().cudnnBackendFinalize(value_) == CUDNN_STATUS_SUCCESS; }

 private:
  cudnnBackendDescriptor_t value_ = nullptr;
};

// View [S, H, D] or [B, S, H, D] as the [B, H, S, D] that cuDNN names.
Descriptor tensor(const View& view, int64_t id) {
  const int r = view.rank;
  const int64_t batch = r == 4 ? view.dim[0] : 1;
  const int64_t rows = view.dim[r - 3], heads = view.dim[r - 2], d = view.dim[r - 1];
  const int64_t dims[4] = {batch, heads, rows, d};
  const int64_t strides[4] = {r == 4 ? view.stride[0] : rows * view.stride[r - 3], view.stride[r - 2],
                              view.stride[r - 3], 1};
  const cudnnDataType_t type = view.type == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
  const int64_t alignment = 16;
  const bool is_virtual = false;
  Descriptor out(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  out.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  out.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  out.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
  out.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
  out.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  out.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  out.finalize();
  return out;
}

Descriptor scale_tensor() {
  const int64_t one[4] = {1, 1, 1, 1}, id = kScale, alignment = 16;
  const cudnnDataType_t type = CUDNN_DATA_FLOAT;
  const bool yes = true, no = false;
  Descriptor out(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  out.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  out.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  out.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, one);
  out.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, one);
  out.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  out.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &no);
  out.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
  out.finalize();
  return out;
}

bool aligned(const View& view) {
  if (reinterpret_cast<uintptr_t>(view.data) % 16 != 0 || view.stride[view.rank - 1] != 1) return false;
  for (int i = 0; i + 1 < view.rank; ++i) {
    if (view.stride[i] % 8 != 0) return false;
  }
  return true;
}

}  // namespace

struct DnnAttention::Plan {
  Descriptor plan{CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR};
  Buffer workspace;
};

DnnAttention::DnnAttention(CudaDevice& device) : device_(device) {
  if (!dnn().loaded()) return;
  cudnnHandle_t handle = nullptr;
  if (dnn().cudnnCreate(&handle) != CUDNN_STATUS_SUCCESS) return;
  handle_ = handle;
  check(dnn().cudnnSetStream(handle, device.stream()), "binding the stream");
}

DnnAttention::~DnnAttention() {
  plans_.clear();
  if (handle_ != nullptr) dnn().cudnnDestroy(static_cast<cudnnHandle_t>(handle_));
}

std::unique_ptr<DnnAttention::Plan> DnnAttention::build(const AttentionArgs& args) {
  Descriptor operation(CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR);
  const Descriptor q = tensor(args.q, kQ), k = tensor(args.k, kK), v = tensor(args.v, kV), o = tensor(args.out, kO);
  const Descriptor scale = scale_tensor();
  operation.set(CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, q);
  operation.set(CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, k);
  operation.set(CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, v);
  operation.set(CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, o);
  operation.set(CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, scale);
  operation.finalize();
  const cudnnHandle_t handle = static_cast<cudnnHandle_t>(handle_);
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  graph.finalize();
  Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  heuristic.finalize();
  std::vector<Descriptor> configs;
  std::array<cudnnBackendDescriptor_t, 8> raw{};
  for (auto& slot : raw) {
    configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    slot = configs.back().get();
  }
  int64_t count = 0;
  check(dnn().cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       static_cast<int64_t>(raw.size()), &count, raw.data()),
        "asking for engines");
  for (int64_t i = 0; i < count && i < static_cast<int64_t>(raw.size()); ++i) {
    auto plan = std::make_unique<Plan>();
    plan->plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw[i]);
    plan->plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    if (!plan->plan.try_finalize()) continue;
    finish(*plan);
    return plan;
  }
  return nullptr;
}

void DnnAttention::finish(Plan& plan) {
  int64_t bytes = 0, n = 0;
  check(dnn().cudnnBackendGetAttribute(plan.plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                       &n, &bytes),
        "reading the workspace size");
  if (bytes > 0) plan.workspace = device_.allocate(bytes, "cuDNN's attention workspace");
}

namespace {

std::string call_name(const std::vector<int64_t>& key) {
  std::string name = "attention";
  for (const int64_t value : key) name += " " + std::to_string(value);
  return name;
}

}  // namespace

std::vector<PlanChoice> DnnAttention::plans() {
  std::vector<PlanChoice> out;
  for (const auto& [key, plan] : plans_) {
    if (plan == nullptr) continue;
    int64_t count = 0;
    const auto read = [&](int64_t room, void* to) {
      return dnn().cudnnBackendGetAttribute(plan->plan.get(), CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                                            CUDNN_TYPE_CHAR, room, &count, to) == CUDNN_STATUS_SUCCESS;
    };
    if (!read(0, nullptr) || count <= 0) continue;
    PlanChoice choice;
    choice.data.resize(static_cast<size_t>(count));
    if (!read(count, choice.data.data())) continue;
    choice.call = call_name(key);
    choice.upto = key[key[1] == 4 ? 4 : 2];  // rows of q: behind the type and the rank come extents and strides
    choice.above = choice.upto - 1;
    out.push_back(std::move(choice));
  }
  return out;
}

void DnnAttention::use(std::shared_ptr<const PlanChoices> choices) {
  check(cudaStreamSynchronize(device_.stream()), "the work queued on the card");
  plans_.clear();
  choices_ = std::move(choices);
}

std::unique_ptr<DnnAttention::Plan> DnnAttention::chosen(const Key& key) {
  if (choices_ == nullptr || choices_->attentions.empty()) return nullptr;
  const std::string name = call_name(key);
  const cudnnHandle_t handle = static_cast<cudnnHandle_t>(handle_);
  for (const PlanChoice& choice : choices_->attentions) {
    if (choice.call != name) continue;
    auto plan = std::make_unique<Plan>();
    plan->plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    const auto bytes = static_cast<int64_t>(choice.data.size());
    if (dnn().cudnnBackendSetAttribute(plan->plan.get(), CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                       bytes, choice.data.data()) != CUDNN_STATUS_SUCCESS ||
        !plan->plan.try_finalize()) {
      return nullptr;
    }
    finish(*plan);
    return plan;
  }
  return nullptr;
}

std::unique_ptr<DnnAttention::Plan> DnnAttention::chosen_or_none(const Key& key) {
  try {
    return chosen(key);
  } catch (const Error& error) {
    if (error.code() == Code::memory) throw;  // another plan would change the result
    return nullptr;
  }
}

DnnAttention::Plan* DnnAttention::find(const AttentionArgs& args) {
  Key key = {static_cast<int64_t>(args.q.type), args.q.rank};
  for (const View* view : {&args.q, &args.k, &args.v, &args.out}) {
    for (int i = 0; i < view->rank; ++i) {
      key.push_back(view->dim[i]);
      key.push_back(view->stride[i]);
    }
  }
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second.get();
  std::unique_ptr<Plan> plan;
  try {
    plan = chosen_or_none(key);
    if (!plan) plan = build(args);
    if (!plan) refusal_ = "cuDNN: no engine for this shape";
  } catch (const Error& error) {
    if (error.code() == Code::memory) throw;  // another kernel would change the result
    refusal_ = error.what();
  }
  return plans_.emplace(std::move(key), std::move(plan)).first->second.get();
}

bool DnnAttention::run(const AttentionArgs& args) {
  const DType type = args.q.type;
  const int64_t d = args.q.dim[args.q.rank - 1];
  if (handle_ == nullptr || args.causal || (type != DType::bf16 && type != DType::f16)) return false;
  if ((d != 64 && d != 128) || !aligned(args.q) || !aligned(args.k) || !aligned(args.v) || !aligned(args.out))
    return false;
  Plan* plan = find(args);
  if (plan == nullptr) return false;
  float scale = args.scale;
  const int64_t ids[5] = {kQ, kK, kV, kO, kScale};
  void* pointers[5] = {args.q.data, args.k.data, args.v.data, args.out.data, &scale};
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 5, ids);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 5, pointers);
  void* const workspace = plan->workspace.data();
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.finalize();
  check(dnn().cudnnBackendExecute(static_cast<cudnnHandle_t>(handle_), plan->plan.get(), pack.get()), "attention");
  return true;
}

}  // namespace h3::cuda
