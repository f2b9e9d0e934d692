#include "ops/workspace.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace h3 {
namespace {

constexpr int64_t kAlign = 256;  // what an accelerator's copies and tensor loads want
#ifdef NDEBUG
constexpr int64_t kGuard = 0;
#else
constexpr int64_t kGuard = kAlign;  // bytes behind each slot that nobody may write while it lives
#endif
[[maybe_unused]] constexpr int kPoison = 0xff;  // as f32, bf16 and f16: NaN; as i32: -1
[[maybe_unused]] constexpr int kCanary = 0xa5;

int64_t slot_bytes(const Slot& slot) {
  int64_t n = size_of(slot.type);
  for (int64_t d : slot.dims) n *= d;
  return n;
}

int64_t span_of(const Slot& slot) { return (slot_bytes(slot) + kGuard + kAlign - 1) / kAlign * kAlign; }

#ifndef NDEBUG
View bytes_at(Device* device, std::byte* data, int64_t count) { return make_view(*device, data, DType::u8, {count}); }

void set_bytes(const View& range, int value) {
  const std::vector<uint8_t> bytes(static_cast<size_t>(range.dim[0]), static_cast<uint8_t>(value));
  range.device->upload(bytes.data(), range);
}

// States of a live slot. Devices that only count keep no contents, so that nothing can be seen behind a slot's end.
constexpr uint8_t kGuarded = 1, kUnguarded = 2;

bool intact(const View& guard) {
  std::vector<uint8_t> bytes(static_cast<size_t>(guard.dim[0]));
  guard.device->download(guard, bytes.data());
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == kCanary; });
}
#endif

}  // namespace

WorkspacePlan plan_workspace(std::vector<Slot> slots) {
  WorkspacePlan plan;
  plan.slots = std::move(slots);
  plan.offsets.assign(plan.slots.size(), 0);
  std::vector<size_t> order(plan.slots.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return span_of(plan.slots[a]) > span_of(plan.slots[b]); });
  std::vector<size_t> placed;  // by increasing offset
  for (size_t i : order) {
    const Slot& slot = plan.slots[i];
    H3_ASSERT(slot.first <= slot.last);
    const int64_t span = span_of(slot);
    int64_t offset = 0;
    for (size_t other : placed) {
      const Slot& o = plan.slots[other];
      if (o.last < slot.first || slot.last < o.first) continue;
      if (offset + span <= plan.offsets[other]) break;
      offset = std::max(offset, plan.offsets[other] + span_of(o));
    }
    plan.offsets[i] = offset;
    plan.bytes = std::max(plan.bytes, offset + span);
    placed.insert(std::find_if(placed.begin(), placed.end(), [&](size_t p) { return plan.offsets[p] > offset; }), i);
  }
  return plan;
}

Workspace::Workspace(Device& device, WorkspacePlan plan, const char* what)
    : plan_(std::move(plan)), slab_(device.allocate(plan_.bytes, what)) {
#ifndef NDEBUG
  if (plan_.bytes > 0) set_bytes(bytes_at(&device, static_cast<std::byte*>(slab_.data()), plan_.bytes), kPoison);
#endif
}

View Workspace::operator[](const char* name) const {
  for (size_t i = 0; i < plan_.slots.size(); ++i) {
    const Slot& slot = plan_.slots[i];
    if (std::strcmp(slot.name, name) == 0) {
      return make_view(*slab_.device(), static_cast<std::byte*>(slab_.data()) + plan_.offsets[i], slot.type, slot.dims);
    }
  }
  assert_failed(strf("no workspace slot named '%s'", name).c_str(), __FILE__, __LINE__);
}

#ifdef NDEBUG
void Workspace::enter(int) {}
#else
void Workspace::enter(int call) {
  int lowest = call;
  for (const Slot& slot : plan_.slots) lowest = std::min(lowest, slot.first);
  const bool restart = call < last_call_ && call == lowest;
  live_.resize(plan_.slots.size());
  std::byte* base = static_cast<std::byte*>(slab_.data());
  const auto guard_of = [&](size_t i) {
    return bytes_at(slab_.device(), base + plan_.offsets[i] + slot_bytes(plan_.slots[i]), kGuard);
  };
  for (size_t i = 0; i < plan_.slots.size(); ++i) {  // lives that ended
    const Slot& slot = plan_.slots[i];
    if (!live_[i] || (slot.first <= call && slot.last >= call && !restart)) continue;
    if (live_[i] == kGuarded && !intact(guard_of(i))) {
      assert_failed(strf("workspace slot '%s' was written behind its end", slot.name).c_str(), __FILE__, __LINE__);
    }
    live_[i] = 0;
    set_bytes(bytes_at(slab_.device(), base + plan_.offsets[i], slot_bytes(slot) + kGuard), kPoison);
  }
  for (size_t i = 0; i < plan_.slots.size(); ++i) {  // lives that begin
    const Slot& slot = plan_.slots[i];
    if (live_[i] || slot.first > call || slot.last < call) continue;
    set_bytes(guard_of(i), kCanary);
    live_[i] = intact(guard_of(i)) ? kGuarded : kUnguarded;
  }
  last_call_ = call;
}
#endif

}  // namespace h3
