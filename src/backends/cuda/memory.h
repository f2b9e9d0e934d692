// The card's memory: the only place that allocates and frees it.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "tensor/tensor.h"

namespace h3::cuda {

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, cudaStream_t stream);
  ~CudaDevice() override;

  const char* name() const override { return name_.c_str(); }
  bool is_host() const override { return false; }
  // Error(memory) naming what was asked, what is in use and what the cap or the card still has.
  Buffer allocate(int64_t bytes, const char* what) override;
  void release(void* data, int64_t bytes) noexcept override;
  void upload(const void* host, View destination) override;
  void download(View source, void* host) override;
  int64_t allocated_bytes() const override { return now_.load(); }
  int64_t peak_bytes() const override { return peak_.load(); }
  void reset_peak() override { peak_.store(now_.load()); }
  int64_t allocations() const override { return count_.load(); }

  // Hard cap on what this device may hold (--vram); 0 = the card's own size.
  void set_cap(int64_t bytes) { cap_ = bytes; }
  int64_t cap() const { return cap_; }
  // Test hook: the n-th allocation from now fails (1 = the next); 0 switches it off.
  void fail_allocation(int64_t n) { fail_in_.store(n); }
  int index() const { return index_; }
  cudaStream_t stream() const { return stream_; }

 private:
  int index_;
  cudaStream_t stream_;
  std::string name_;
  int64_t cap_ = 0;
  std::atomic<int64_t> now_{0}, peak_{0}, count_{0}, fail_in_{0};
};

}  // namespace h3::cuda
