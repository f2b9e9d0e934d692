#include "backends/cuda/cuda_ops.h"

#include "backends/cuda/attention_dnn.h"
#include "backends/cuda/backend.h"
#include "backends/cuda/check.h"
#include "backends/cuda/linear_plans.h"
#include "backends/cuda/weight_stream.h"
#include "base/error.h"
#include "ops/stored.h"

namespace h3 {

std::vector<CudaCard> list_cuda_cards() {
  std::vector<CudaCard> cards;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    CudaCard none;
    none.refused = status == cudaSuccess ? "no NVIDIA card is visible" : cudaGetErrorString(status);
    cards.push_back(none);
    return cards;
  }
  for (int i = 0; i < count; ++i) {
    CudaCard card;
    card.index = i;
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) {
      card.refused = cudaGetErrorString(cudaGetLastError());
      cards.push_back(card);
      continue;
    }
    card.name = properties.name;
    card.major = properties.major;
    card.minor = properties.minor;
    card.total_bytes = static_cast<int64_t>(properties.totalGlobalMem);
    const cuda::BlasLt& blas = cuda::blas_lt();
    const cuda::Dnn& dnn = cuda::dnn();
    card.libraries = blas.loaded() ? "cuBLASLt " + blas.version : "no cuBLASLt (" + blas.reason + ")";
    card.libraries += dnn.loaded() ? ", cuDNN " + dnn.version : ", no cuDNN (" + dnn.reason + "): own attention kernel";
    if (properties.major < 8) {
      card.refused = strf("compute capability %d.%d, 8.0 or newer is needed", properties.major, properties.minor);
    } else if (!blas.loaded()) {
      card.refused = "cuBLASLt cannot be opened: " + blas.reason;
    }
    cards.push_back(card);
  }
  return cards;
}

std::unique_ptr<Ops> make_cuda_ops(Context& context, int index) {
  const std::vector<CudaCard> cards = list_cuda_cards();
  if (index < 0 || index >= static_cast<int>(cards.size())) {
    fail(Code::device, "cuda:%d does not exist; this machine has %zu card%s", index, cards.size(),
         cards.size() == 1 ? "" : "s");
  }
  if (!cards[index].refused.empty())
    fail(Code::device, "cuda:%d cannot be used: %s", index, cards[index].refused.c_str());
  return std::make_unique<cuda::CudaOps>(context, index);
}

namespace cuda {

StreamOwner::StreamOwner() { check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream creation"); }

StreamOwner::~StreamOwner() { cudaStreamDestroy(stream); }

namespace {

int select_card(int index) {
  check(cudaSetDevice(index), "selecting the card");
  return index;
}

}  // namespace

CudaOps::CudaOps(Context& context, int index)
    : context_(context),
      index_(select_card(index)),
      device_(index, owner_.stream, context.pool),
      plans_(std::make_unique<LinearPlans>(*this)),
      dnn_(std::make_unique<DnnAttention>(device_)) {
  for (cudaEvent_t& event : paces_) check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event creation");
}

CudaOps::~CudaOps() {
  cudaStreamSynchronize(owner_.stream);
  for (cudaEvent_t event : paces_) cudaEventDestroy(event);
  cudaGetLastError();
}

void CudaOps::sync() { check(cudaStreamSynchronize(owner_.stream), "the work queued on the card"); }

void CudaOps::pace() {
  cudaEvent_t oldest = paces_[next_pace_];
  check(cudaEventSynchronize(oldest), "the work queued on the card");
  check(cudaEventRecord(oldest, owner_.stream), "marking queued work");
  next_pace_ = 1 - next_pace_;
}

std::unique_ptr<WeightGroup> CudaOps::make_group() {
  std::shared_ptr<WeightStream> stream = weight_stream_.lock();
  if (stream == nullptr) {
    stream = std::make_shared<WeightStream>(device_);
    weight_stream_ = stream;
  }
  return std::make_unique<StreamGroup>(std::move(stream));
}

int64_t CudaOps::linear_bytes(const MatrixSource& weight, Compute compute) const {
  if (kept_as_stored(weight, compute)) {
    const bool scales = compute == Compute::packed && weight.format() == Format::f8_e4m3;
    return weight.stored_bytes() + (scales ? 4 * weight.rows : 0);
  }
  if (compute != Compute::int8) return Ops::linear_bytes(weight, compute);
  const auto padded = [](int64_t n) { return (n + 15) / 16 * 16; };
  return padded(weight.rows) * padded(weight.cols) + 4 * weight.rows;
}

int64_t CudaOps::scratch_bytes(Compute compute) const { return LinearPlans::scratch_bytes(compute); }

int64_t CudaOps::expansion_bytes(const MatrixSource& weight, Compute compute) const {
  return LinearPlans::expansion_bytes(weight, compute);
}

void* CudaOps::scratch(int slot, int64_t bytes) {
  Buffer& buffer = scratch_[slot];
  if (buffer.bytes() < bytes) {
    sync();
    buffer = Buffer();
    buffer = device_.allocate(bytes, "kernel scratch");
  }
  return buffer.data();
}

void CudaOps::attention(const AttentionArgs& args) {
  if (dnn_->run(args)) return;
  attention_generic(args);
}

}  // namespace cuda
}  // namespace h3
