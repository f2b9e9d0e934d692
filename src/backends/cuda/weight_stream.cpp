#include "backends/cuda/weight_stream.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "backends/cuda/backend.h"
#include "backends/cuda/check.h"
#include "base/error.h"

namespace h3::cuda {
namespace {

constexpr int64_t kStageBytes = int64_t{16} << 20;
constexpr int kStages = 4;
constexpr int kCopyThreads = 4;  // one thread moves some 10 GB/s, the bus 25 to 50

}  // namespace

StreamGroup::~StreamGroup() { stream_->forget(*this); }
void StreamGroup::prefetch() { stream_->prefetch(*this); }
void StreamGroup::enter() { stream_->enter(*this); }
void StreamGroup::leave() { stream_->leave(*this); }

int64_t StreamGroup::reserve(int64_t count) {
  const int64_t offset = bytes;
  bytes += (count + 255) / 256 * 256;
  stream_->largest_ = std::max(stream_->largest_, bytes);
  return offset;
}

void StreamGroup::put(int64_t offset, StagedCopy::Pieces host, std::shared_ptr<const void> keep_alive) {
  if (host.empty()) return;
  Piece piece;
  piece.offset = offset;
  piece.host = std::move(host);
  piece.keep_alive = std::move(keep_alive);
  pieces_.push_back(std::move(piece));
}

void StreamGroup::put_noise(int64_t offset, const NoiseWeights& noise, int64_t first, int64_t count, DType type) {
  Piece piece;
  piece.offset = offset;
  piece.noise = noise;
  piece.first = first;
  piece.count = count;
  piece.type = type;
  pieces_.push_back(std::move(piece));
}

const std::byte* StreamGroup::base() const {
  H3_ASSERT(entered_ && slot_ >= 0);
  return static_cast<const std::byte*>(stream_->slots_[slot_].memory.data());
}

WeightStream::WeightStream(CudaDevice& device)
    : device_(device), pool_(kCopyThreads), staged_(device, pool_, kStageBytes, kStages) {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream creation");
  for (Slot& slot : slots_) {
    check(cudaEventCreateWithFlags(&slot.ready, cudaEventDisableTiming), "event creation");
    check(cudaEventCreateWithFlags(&slot.free, cudaEventDisableTiming), "event creation");
  }
  loads_ = std::make_unique<JobThread>(std::size(slots_));
}

WeightStream::~WeightStream() {
  loads_.reset();
  cudaStreamSynchronize(stream_);
  for (Slot& slot : slots_) {
    cudaEventDestroy(slot.ready);
    cudaEventDestroy(slot.free);
  }
  cudaStreamDestroy(stream_);
  cudaGetLastError();
}

void WeightStream::prefetch(StreamGroup& group) {
  if (group.slot_ >= 0) return;
  grow(group.bytes);
  Slot* chosen = nullptr;
  for (Slot& slot : slots_) {
    if (slot.holder != nullptr && slot.holder->entered_) continue;
    if (chosen == nullptr || (chosen->holder != nullptr && (slot.holder == nullptr || slot.left < chosen->left)))
      chosen = &slot;
  }
  H3_ASSERT(chosen != nullptr);  // a third group was entered
  wait_loaded(*chosen);
  if (chosen->holder != nullptr) chosen->holder->slot_ = -1;
  chosen->holder = &group;
  chosen->left = UINT64_MAX;
  group.slot_ = static_cast<int>(index_of(*chosen));
  loads_->start(index_of(*chosen), [this, chosen, &group] { load(*chosen, group); });
}

void WeightStream::enter(StreamGroup& group) {
  prefetch(group);
  Slot& slot = slots_[group.slot_];
  wait_loaded(slot);
  check(cudaStreamWaitEvent(device_.stream(), slot.ready), "waiting for streamed weights");
  group.entered_ = true;
}

void WeightStream::leave(StreamGroup& group) {
  Slot& slot = slots_[group.slot_];
  group.entered_ = false;
  slot.left = ++clock_;
  check(cudaEventRecord(slot.free, device_.stream()), "marking streamed weights as used");
}

void WeightStream::forget(StreamGroup& group) noexcept {
  if (group.slot_ < 0) return;
  Slot& slot = slots_[group.slot_];
  loads_->drop(index_of(slot));
  slot.holder = nullptr;
  group.slot_ = -1;
}

void WeightStream::wait_loaded(Slot& slot) {
  try {
    loads_->wait(index_of(slot));
  } catch (...) {
    if (slot.holder != nullptr) slot.holder->slot_ = -1;
    slot.holder = nullptr;
    throw;
  }
}

// Two slots of the largest group. What they held is brought again when it is entered.
void WeightStream::grow(int64_t bytes) {
  const int64_t wanted = std::max(largest_, bytes);
  if (slots_[0].memory.bytes() >= wanted && slots_[1].memory.bytes() >= wanted) return;
  for (Slot& slot : slots_) {
    wait_loaded(slot);
    H3_ASSERT(slot.holder == nullptr || !slot.holder->entered_);
    if (slot.holder != nullptr) slot.holder->slot_ = -1;
    slot.holder = nullptr;
  }
  check(cudaStreamSynchronize(stream_), "streamed weights");
  for (Slot& slot : slots_) slot.memory = Buffer();
  for (Slot& slot : slots_) slot.memory = device_.allocate(wanted, "a layer of streamed weights");
}

void WeightStream::load(Slot& slot, const StreamGroup& group) {
  check(cudaSetDevice(device_.index()), "selecting the card");
  check(cudaStreamWaitEvent(stream_, slot.free), "waiting for a slot");
  auto* base = static_cast<std::byte*>(slot.memory.data());
  for (const StreamGroup::Piece& piece : group.pieces_) {
    if (piece.host.empty()) {
      fill_noise(stream_, piece.noise, piece.first, piece.count, base + piece.offset, piece.type);
    } else {
      staged_.copy(stream_, base + piece.offset, piece.host);
    }
  }
  check(cudaEventRecord(slot.ready, stream_), "marking streamed weights as there");
}

}  // namespace h3::cuda
