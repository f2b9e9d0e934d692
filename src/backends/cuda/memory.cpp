#include "backends/cuda/memory.h"

#include <algorithm>

#include "backends/cuda/check.h"
#include "base/error.h"

namespace h3::cuda {

CudaDevice::CudaDevice(int index, cudaStream_t stream)
    : index_(index), stream_(stream), name_(strf("cuda:%d", index)) {}

CudaDevice::~CudaDevice() = default;

Buffer CudaDevice::allocate(int64_t bytes, const char* what) {
  H3_ASSERT(bytes >= 0);
  const int64_t rounded = std::max<int64_t>((bytes + 255) / 256 * 256, 256);
  const double mib = 1048576.0;
  if (fail_in_.load() > 0 && fail_in_.fetch_sub(1) == 1) {
    fail(Code::memory, "out of memory on %s: %s needs %.1f MiB (planned test failure)", name(), what, bytes / mib);
  }
  if (cap_ > 0 && now_.load() + rounded > cap_) {
    fail(Code::memory,
         "out of memory on %s: %s needs %.1f MiB, %.1f MiB of the cap of %.1f MiB are in use. Raise --vram "
         "or use --plan stream",
         name(), what, bytes / mib, now_.load() / mib, cap_ / mib);
  }
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(rounded));
  if (status != cudaSuccess) {
    cudaGetLastError();  // clear it: the request ends, the context goes on
    size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    fail(Code::memory,
         "out of memory on %s: %s needs %.1f MiB, %.1f MiB are free (%.1f MiB held here). Use --plan stream "
         "or a smaller size",
         name(), what, bytes / mib, static_cast<double>(free_bytes) / mib, now_.load() / mib);
  }
  const int64_t now = now_.fetch_add(rounded) + rounded;
  int64_t peak = peak_.load();
  while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
  }
  count_.fetch_add(1);
  return Buffer(this, data, rounded);
}

void CudaDevice::release(void* data, int64_t bytes) noexcept {
  now_.fetch_sub(bytes);
  cudaFree(data);  // waits for work that may still use it
}

void CudaDevice::upload(const void* host, View destination) {
  H3_ASSERT(destination.contiguous());
  if (destination.bytes() == 0) return;
  check(cudaMemcpyAsync(destination.data, host, static_cast<size_t>(destination.bytes()), cudaMemcpyHostToDevice,
                        stream_),
        "upload");
  check(cudaStreamSynchronize(stream_), "upload");
}

void CudaDevice::download(View source, void* host) {
  H3_ASSERT(source.contiguous());
  if (source.bytes() == 0) return;
  check(cudaMemcpyAsync(host, source.data, static_cast<size_t>(source.bytes()), cudaMemcpyDeviceToHost, stream_),
        "download");
  check(cudaStreamSynchronize(stream_), "download");
}

}  // namespace h3::cuda
