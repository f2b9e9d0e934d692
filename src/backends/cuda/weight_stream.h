// Weights that do not stay on the card: groups of them are copied in while the card computes with the group before.
// Host bytes (the mapped file, or operands packed at load) go through page-locked staging to one of two slots.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backends/cuda/memory.h"
#include "base/job_thread.h"
#include "base/thread_pool.h"
#include "codec/noise.h"
#include "ops/ops.h"

namespace h3::cuda {

class WeightStream;

class StreamGroup final : public WeightGroup {
 public:
  explicit StreamGroup(std::shared_ptr<WeightStream> stream) : stream_(std::move(stream)) {}
  ~StreamGroup() override;
  void prefetch() override;
  void enter() override;
  void leave() override;

  // At load: room for `count` bytes, at a multiple of 256, and what fills it.
  int64_t reserve(int64_t count);
  void put(int64_t offset, StagedCopy::Pieces host, std::shared_ptr<const void> keep_alive);  // behind each other
  void put_noise(int64_t offset, const NoiseWeights& noise, int64_t first, int64_t count, DType type);
  const std::byte* base() const;  // on the card, while entered

 private:
  friend class WeightStream;
  struct Piece {
    int64_t offset = 0;
    StagedCopy::Pieces host;  // empty: noise values [first, first + count) of `type`, made on the card
    std::shared_ptr<const void> keep_alive;
    NoiseWeights noise;
    int64_t first = 0, count = 0;
    DType type = DType::bf16;
  };
  std::shared_ptr<WeightStream> stream_;
  std::vector<Piece> pieces_;
  int slot_ = -1;
  bool entered_ = false;
};

class WeightStream {
 public:
  explicit WeightStream(CudaDevice& device);
  ~WeightStream();
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;

 private:
  friend class StreamGroup;
  struct Slot {
    Buffer memory;
    StreamGroup* holder = nullptr;
    cudaEvent_t ready = nullptr, free = nullptr;  // its copy is done; the calls that read it are done
    uint64_t left = 0;                            // when its holder was left; never, if it waits to be entered
  };
  void prefetch(StreamGroup& group);
  void enter(StreamGroup& group);
  void leave(StreamGroup& group);
  void forget(StreamGroup& group) noexcept;
  // Until its copy is queued. Rethrows what went wrong; then the slot is empty.
  void wait_loaded(Slot& slot);
  size_t index_of(const Slot& slot) const { return static_cast<size_t>(&slot - slots_); }
  void grow(int64_t bytes);
  void load(Slot& slot, const StreamGroup& group);

  CudaDevice& device_;
  Slot slots_[2];  // who holds them is settled on the calling thread alone
  cudaStream_t stream_ = nullptr;
  int64_t largest_ = 0;  // bytes of the largest group
  uint64_t clock_ = 0;
  ThreadPool pool_;  // of the copies into page-locked memory; the context's pool is busy elsewhere
  StagedCopy staged_;
  std::unique_ptr<JobThread> loads_;
};

}  // namespace h3::cuda
