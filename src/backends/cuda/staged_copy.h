// Host bytes to the card through page-locked memory: threads fill one stage while the bus empties those before it. A
// copy from a mapped file by the driver alone runs at a tenth of the bus (docs/measurements/020).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"

namespace h3::cuda {

class CudaDevice;

class StagedCopy {
 public:
  StagedCopy(CudaDevice& device, ThreadPool& pool, int64_t stage_bytes, int stages);
  ~StagedCopy();
  StagedCopy(const StagedCopy&) = delete;
  StagedCopy& operator=(const StagedCopy&) = delete;

  using Pieces = std::vector<std::span<const std::byte>>;
  // The pieces behind each other, in the order of `stream`. When it returns, the host's bytes may be reused.
  void copy(cudaStream_t stream, void* target, const Pieces& pieces);

 private:
  struct Stage {
    std::shared_ptr<std::byte> memory;
    cudaEvent_t copied = nullptr;
  };
  struct Share {  // of a stage, of one thread
    std::byte* to;
    std::span<const std::byte> from;
  };
  std::vector<Share> shares(std::byte* stage, int64_t room, const Pieces& pieces, size_t& piece, size_t& at) const;

  ThreadPool& pool_;
  int64_t stage_bytes_;
  std::vector<Stage> stages_;
  size_t next_ = 0;
};

}  // namespace h3::cuda
