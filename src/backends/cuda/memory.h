// The card's memory and page-locked host memory: the only place that allocates and frees them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>

#include "backends/cuda/staged_copy.h"
#include "tensor/tensor.h"

namespace h3::cuda {

class CudaDevice final : public Device {
 public:
  // `pool` copies into page-locked memory: upload() is not for its tasks.
  CudaDevice(int index, cudaStream_t stream, ThreadPool& pool);
  ~CudaDevice() override;

  const char* name() const override { return name_.c_str(); }
  bool is_host() const override { return false; }
  Buffer allocate(int64_t bytes, const char* what) override;
  void release(void* data, int64_t bytes) noexcept override;
  void upload(const void* host, View destination) override;
  void upload_pieces(void* target, const StagedCopy::Pieces& pieces);  // behind each other
  void download(View source, void* host) override;
  int64_t free_bytes() const override;

  int index() const { return index_; }
  cudaStream_t stream() const { return stream_; }

 private:
  std::shared_ptr<std::byte> make_staging(int64_t bytes) override;

  int index_;
  cudaStream_t stream_;
  ThreadPool& pool_;
  std::string name_;
  std::unique_ptr<StagedCopy> staged_;  // made when it is first used
};

}  // namespace h3::cuda
