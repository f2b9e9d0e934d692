#include "backends/cuda/memory.h"

#include <algorithm>

#include "backends/cuda/check.h"
#include "base/error.h"

namespace h3::cuda {

namespace {

constexpr int64_t kStageBytes = int64_t{8} << 20;
constexpr int kStages = 8;

// Page-locked memory needs no stage.
bool page_locked(const void* host) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, host) == cudaSuccess) return attributes.type == cudaMemoryTypeHost;
  cudaGetLastError();
  return false;
}

}  // namespace

CudaDevice::CudaDevice(int index, cudaStream_t stream, ThreadPool& pool)
    : index_(index), stream_(stream), pool_(pool), name_(strf("cuda:%d", index)) {}

CudaDevice::~CudaDevice() = default;

Buffer CudaDevice::allocate(int64_t bytes, const char* what) {
  H3_ASSERT(bytes >= 0);
  const int64_t rounded = std::max<int64_t>((bytes + 255) / 256 * 256, 256);
  admit(rounded, what);
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(rounded));
  if (status != cudaSuccess) {
    cudaGetLastError();  // clear it: the request ends, the context goes on
    constexpr double kMiB = 1048576.0;
    fail(Code::memory,
         "out of memory on %s: %s needs %.1f MiB, %.1f MiB are free (%.1f MiB held here); use --plan stream or ask for "
         "a smaller or shorter clip",
         name(), what, static_cast<double>(bytes) / kMiB, static_cast<double>(free_bytes()) / kMiB,
         static_cast<double>(allocated_bytes()) / kMiB);
  }
  count_taken(rounded);
  return Buffer(this, data, rounded);
}

void CudaDevice::release(void* data, int64_t bytes) noexcept {
  count_given(bytes);
  cudaFree(data);  // waits for work that may still use it
}

int64_t CudaDevice::free_bytes() const {
  size_t free_now = 0, total = 0;
  if (cudaMemGetInfo(&free_now, &total) != cudaSuccess) return 0;
  return static_cast<int64_t>(free_now);
}

std::shared_ptr<std::byte> CudaDevice::make_staging(int64_t bytes) {
  void* data = nullptr;
  if (cudaHostAlloc(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1)), cudaHostAllocDefault) != cudaSuccess) {
    cudaGetLastError();
    fail(Code::memory, "out of memory: staging for %s needs %.1f MiB of page-locked RAM", name(),
         static_cast<double>(bytes) / 1048576.0);
  }
  return {static_cast<std::byte*>(data), [](std::byte* p) { cudaFreeHost(p); }};
}

void CudaDevice::upload(const void* host, View destination) {
  H3_ASSERT(destination.contiguous());
  const auto bytes = static_cast<size_t>(destination.bytes());
  if (bytes == 0) return;
  if (!page_locked(host)) return upload_pieces(destination.data, {{static_cast<const std::byte*>(host), bytes}});
  check(cudaMemcpyAsync(destination.data, host, bytes, cudaMemcpyHostToDevice, stream_), "upload");
  check(cudaStreamSynchronize(stream_), "upload");
}

void CudaDevice::upload_pieces(void* target, const StagedCopy::Pieces& pieces) {
  if (staged_ == nullptr) staged_ = std::make_unique<StagedCopy>(*this, pool_, kStageBytes, kStages);
  staged_->copy(stream_, target, pieces);
}

void CudaDevice::download(View source, void* host) {
  H3_ASSERT(source.contiguous());
  if (source.bytes() == 0) return;
  check(cudaMemcpyAsync(host, source.data, static_cast<size_t>(source.bytes()), cudaMemcpyDeviceToHost, stream_),
        "download");
  check(cudaStreamSynchronize(stream_), "download");
}

}  // namespace h3::cuda
