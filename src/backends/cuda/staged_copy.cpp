#include "backends/cuda/staged_copy.h"

#include <algorithm>
#include <cstring>

#include "backends/cuda/check.h"
#include "backends/cuda/memory.h"

namespace h3::cuda {
namespace {

constexpr size_t kShareBytes = size_t{512} << 10;

}  // namespace

StagedCopy::StagedCopy(CudaDevice& device, ThreadPool& pool, int64_t stage_bytes, int stages)
    : pool_(pool), stage_bytes_(stage_bytes), stages_(static_cast<size_t>(stages)) {
  for (Stage& stage : stages_) {
    stage.memory = device.staging(stage_bytes);
    check(cudaEventCreateWithFlags(&stage.copied, cudaEventDisableTiming), "event creation");
  }
}

StagedCopy::~StagedCopy() {
  for (Stage& stage : stages_) {
    cudaEventSynchronize(stage.copied);
    cudaEventDestroy(stage.copied);
  }
  cudaGetLastError();
}

std::vector<StagedCopy::Share> StagedCopy::shares(std::byte* stage, int64_t room, const Pieces& pieces, size_t& piece,
                                                  size_t& at) const {
  std::vector<Share> out;
  for (auto left = static_cast<size_t>(room); left > 0 && piece < pieces.size();) {
    const size_t count = std::min({kShareBytes, left, pieces[piece].size() - at});
    if (count > 0) out.push_back({stage, pieces[piece].subspan(at, count)});
    stage += count;
    left -= count;
    at += count;
    if (at < pieces[piece].size()) continue;
    ++piece;
    at = 0;
  }
  return out;
}

void StagedCopy::copy(cudaStream_t stream, void* target, const Pieces& pieces) {
  auto* to = static_cast<std::byte*>(target);
  size_t piece = 0, at = 0;
  while (piece < pieces.size()) {
    Stage& stage = stages_[next_];
    next_ = (next_ + 1) % stages_.size();
    check(cudaEventSynchronize(stage.copied), "copying to the card");
    const std::vector<Share> filled = shares(stage.memory.get(), stage_bytes_, pieces, piece, at);
    if (filled.empty()) return;
    pool_.parallel(static_cast<int64_t>(filled.size()), [&](int64_t i) {
      const Share& share = filled[static_cast<size_t>(i)];
      std::memcpy(share.to, share.from.data(), share.from.size());
    });
    const auto bytes = static_cast<size_t>(filled.back().to + filled.back().from.size() - stage.memory.get());
    check(cudaMemcpyAsync(to, stage.memory.get(), bytes, cudaMemcpyHostToDevice, stream), "copying to the card");
    check(cudaEventRecord(stage.copied, stream), "copying to the card");
    to += bytes;
  }
}

}  // namespace h3::cuda
