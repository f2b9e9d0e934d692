#include "backends/cuda/cuda_ops.h"

#include "backends/cuda/attention_dnn.h"
#include "backends/cuda/backend.h"
#include "backends/cuda/check.h"
#include "backends/cuda/kernels/attention_kernels.h"
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

std::unique_ptr<Ops> make_cuda_ops(Context& context, int index, CudaAttention attention) {
  const std::vector<CudaCard> cards = list_cuda_cards();
  if (index < 0 || index >= static_cast<int>(cards.size())) {
    fail(Code::device, "cuda:%d does not exist; this machine has %zu card%s", index, cards.size(),
         cards.size() == 1 ? "" : "s");
  }
  if (!cards[index].refused.empty())
    fail(Code::device, "cuda:%d cannot be used: %s", index, cards[index].refused.c_str());
  return std::make_unique<cuda::CudaOps>(context, index, attention);
}

namespace cuda {

StreamOwner::StreamOwner() { check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream creation"); }

StreamOwner::~StreamOwner() { cudaStreamDestroy(stream); }

EventOwner::EventOwner(unsigned flags) { check(cudaEventCreateWithFlags(&event, flags), "event creation"); }

EventOwner::~EventOwner() { cudaEventDestroy(event); }

namespace {

int select_card(int index) {
  check(cudaSetDevice(index), "selecting the card");
  return index;
}

}  // namespace

CudaOps::CudaOps(Context& context, int index, CudaAttention attention)
    : context_(context),
      index_(select_card(index)),
      attention_(attention),
      device_(index, owner_.stream, context.pool),
      plans_(std::make_unique<LinearPlans>(*this)),
      dnn_(std::make_unique<DnnAttention>(device_)) {}

CudaOps::~CudaOps() {
  cudaStreamSynchronize(owner_.stream);
  cudaGetLastError();
}

void CudaOps::sync() { check(cudaStreamSynchronize(owner_.stream), "the work queued on the card"); }

void CudaOps::pace() {
  const cudaEvent_t oldest = paces_[next_pace_].event;
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
    const Format format = weight.format();
    const bool coded = format == Format::f8_e4m3 || (format == Format::nvfp4 && plans_->multiplies_nvfp4());
    const bool scales = compute == Compute::packed && coded;
    return weight.stored_bytes() + (scales ? 4 * weight.rows : 0);
  }
  if (compute != Compute::int8) return Ops::linear_bytes(weight, compute);
  const auto padded = [](int64_t n) { return (n + 15) / 16 * 16; };
  return padded(weight.rows) * padded(weight.cols) + 4 * weight.rows;
}

int64_t CudaOps::scratch_bytes(Compute compute) const { return plans_->scratch_bytes(compute); }

bool CudaOps::multiplies_float8() const { return plans_->multiplies_float8(); }

std::string CudaOps::refuses_nvfp4() const {
  if (plans_->multiplies_nvfp4()) return {};
  const int capability = plans_->capability();
  return strf("it needs compute capability %d.%d or later, this card is %d.%d", kNvfp4Capability / 10,
              kNvfp4Capability % 10, capability / 10, capability % 10);
}

int64_t CudaOps::expansion_bytes(const MatrixSource& weight, Compute compute) const {
  return LinearPlans::expansion_bytes(weight, compute);
}

void* CudaOps::scratch(int slot, int64_t bytes) {
  std::shared_ptr<Buffer>& buffer = scratch_[slot];
  if (buffer == nullptr || buffer->bytes() < bytes) {
    sync();
    buffer.reset();
    buffer = std::make_shared<Buffer>(device_.allocate(bytes, "kernel scratch"));
  }
  return buffer->data();
}

namespace {

// From here on the own kernel is faster than cuDNN's (docs/measurements/017); below it the card is not full.
constexpr int64_t kOwnRows = 1024;
constexpr int64_t kOwnRowsOf64 = 1797;  // with heads of 64; the shortest measured, a tile of the video decoder

bool one_head_for_each(const AttentionArgs& args) {
  return !args.causal && args.q.dim[args.q.rank - 2] == args.k.dim[args.k.rank - 2];
}

// Rows of heads that are read 16 bytes at a time.
bool reads_pieces(const View& view) {
  const int64_t strides = (view.stride[0] | view.stride[1]) * size_of(view.type);
  return view.stride[2] == 1 && (reinterpret_cast<uintptr_t>(view.data) | static_cast<uintptr_t>(strides)) % 16 == 0;
}

HeadsOfAttention heads_of(const AttentionArgs& args) {
  const View &q = args.q, &k = args.k, &v = args.v, &out = args.out;
  const int rows = q.rank - 3, head = q.rank - 2;
  const auto batch = [&](const View& view) { return rows == 1 ? view.stride[0] : view.dim[0] * view.stride[0]; };
  HeadsOfAttention a{};
  a.q = q.data, a.k = k.data, a.v = v.data, a.out = out.data;
  a.q_row = q.stride[rows], a.q_head = q.stride[head], a.q_batch = batch(q);
  a.k_row = k.stride[rows], a.k_head = k.stride[head], a.k_batch = batch(k);
  a.v_row = v.stride[rows], a.v_head = v.stride[head], a.v_batch = batch(v);
  a.o_row = out.stride[rows], a.o_head = out.stride[head], a.o_batch = batch(out);
  a.queries = q.dim[rows], a.keys = k.dim[rows];
  a.heads = static_cast<int>(q.dim[head]), a.d = static_cast<int>(q.dim[q.rank - 1]);
  a.batch = rows == 1 ? static_cast<int>(q.dim[0]) : 1;
  a.type = q.type;
  a.scale_log2 = args.scale * 1.4426950408889634f;
  return a;
}

}  // namespace

void CudaOps::attention(const AttentionArgs& args) {
  if (args.out.elements() == 0) return;
  if (args.math == AttentionMath::eight_bit) {
    H3_ASSERT(args.q.rank == 3 && one_head_for_each(args) && *refuses_attention_eight_bit(args.q.dim[2]) == '\0');
    H3_ASSERT(args.k.dim[0] > 0 && reads_pieces(args.q) && reads_pieces(args.k) && reads_pieces(args.v));
    const int64_t bytes = attention_eight_bit_bytes(args.q.dim[0], args.k.dim[0], args.q.dim[1]);
    return attention_eight_bit(stream(), heads_of(args), scratch(kAttentionScratch, bytes));
  }
  const bool asked = attention_ == CudaAttention::own;
  const int64_t least = args.q.dim[args.q.rank - 1] == 64 ? kOwnRowsOf64 : kOwnRows;
  const bool fills = attention_ == CudaAttention::faster && args.q.dim[args.q.rank - 3] >= least;
  if ((asked || fills) && one_head_for_each(args)) {
    const HeadsOfAttention heads = heads_of(args);
    if (attention_hopper_takes(heads)) return attention_hopper(stream(), heads);
  }
  if (!asked && dnn_->run(args)) return;
  attention_generic(args);
}

std::string CudaOps::refuses_eight_bit(int64_t head_dim) const { return refuses_attention_eight_bit(head_dim); }

int64_t CudaOps::eight_bit_bytes(int64_t rows, int64_t heads, int64_t head_dim) const {
  return (void)head_dim, attention_eight_bit_bytes(rows, rows, heads);
}

}  // namespace cuda
}  // namespace h3
