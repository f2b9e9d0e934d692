// The layers of a model, all on the device or only the first of them, with the rest coming and going in turn. Which it
// is never changes a bit of the result: a layer is the same weights in the same kernels wherever it waited.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/ops.h"

namespace h3 {

// How many layers of a stack stay on the device; the others are streamed.
inline constexpr int64_t kAllLayers = INT64_MAX;

// Layer: movable, with bytes() = what it holds on the device beside its group.
template <typename Layer>
class LayerStack {
 public:
  // Makes layer `index`, whose matmul weights travel with `group` (nullptr: they stay).
  using Make = std::function<Layer(int64_t index, WeightGroup* group)>;

  // `loaded(i)` is called before layer i is made, and once more with `count`.
  void load(Ops& ops, int64_t count, int64_t resident, Make make, const std::function<void(int64_t)>& loaded) {
    entries_.clear();
    entered_.clear();
    make_ = std::move(make);
    resident_ = std::clamp<int64_t>(resident, 0, count);
    if (count - resident_ <= 2) resident_ = count;  // two are on the device at a time anyway
    bytes_ = 0;
    int64_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
      loaded(i);
      Entry& entry = entries_.emplace_back();
      if (i >= resident_) {
        entry.group = ops.make_group();
        if (entry.group == nullptr) continue;  // made when it is reached
      }
      entry.layer.emplace(make_(i, entry.group.get()));
      bytes_ += entry.layer->bytes();
      if (entry.group != nullptr) largest = std::max(largest, entry.group->bytes);
    }
    bytes_ += 2 * largest;
    loaded(count);
    if (resident_ < count && entries_.back().group != nullptr) {
      prefetch(resident_);
      prefetch(resident_ + 1);
    }
  }

  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  int64_t resident() const { return resident_; }
  int64_t bytes() const { return bytes_; }  // on the device, once all of it was used

  // The layer, its small parameters usable; its matmuls only after enter().
  const Layer& at(int64_t i) {
    Entry& entry = entries_[static_cast<size_t>(i)];
    if (!entry.layer) entry.layer.emplace(make_(i, nullptr));
    return *entry.layer;
  }
  const Layer& enter(int64_t i) {
    const Layer& layer = at(i);
    Entry& entry = entries_[static_cast<size_t>(i)];
    if (entry.group == nullptr || std::find(entered_.begin(), entered_.end(), i) != entered_.end()) return layer;
    while (entered_.size() >= 2) leave(entered_.front());  // of a pass that was stopped
    entry.group->enter();
    entered_.push_back(i);
    return layer;
  }
  // Layer i has done its part of this pass; the one after the next takes its place.
  void leave(int64_t i) {
    if (i < resident_) return;
    Entry& entry = entries_[static_cast<size_t>(i)];
    if (entry.group == nullptr) {
      entry.layer.reset();
      return;
    }
    entered_.erase(std::find(entered_.begin(), entered_.end(), i));
    entry.group->leave();
    const int64_t streamed = size() - resident_;
    prefetch(resident_ + (i - resident_ + 2) % streamed);
  }

 private:
  struct Entry {
    std::unique_ptr<WeightGroup> group;  // outlives the layer
    std::optional<Layer> layer;
  };
  void prefetch(int64_t i) { entries_[static_cast<size_t>(i)].group->prefetch(); }

  Make make_;
  std::vector<Entry> entries_;
  std::vector<int64_t> entered_;
  int64_t resident_ = 0, bytes_ = 0;
};

}  // namespace h3
