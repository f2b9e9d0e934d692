#include "ops/workspace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace h3 {
namespace {

int64_t bytes_of(const Slot& slot) {
  int64_t n = size_of(slot.type);
  for (int64_t d : slot.dims) n *= d;
  return n;
}

void expect_sound(const WorkspacePlan& plan) {
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const Slot& a = plan.slots[i];
    EXPECT_EQ(plan.offsets[i] % 256, 0);
    EXPECT_LE(plan.offsets[i] + bytes_of(a), plan.bytes);
    for (size_t j = 0; j < i; ++j) {
      const Slot& b = plan.slots[j];
      if (a.last < b.first || b.last < a.first) continue;
      EXPECT_TRUE(plan.offsets[i] + bytes_of(a) <= plan.offsets[j] || plan.offsets[j] + bytes_of(b) <= plan.offsets[i])
          << a.name << " and " << b.name << " live at once and share bytes";
    }
  }
}

TEST(Workspace, LivesThatMeetDoNotShare) {
  const WorkspacePlan plan = plan_workspace({{"a", DType::f32, {1000}, 0, 3}, {"b", DType::f32, {1000}, 3, 5}});
  expect_sound(plan);
  EXPECT_NE(plan.offsets[0], plan.offsets[1]);
}

TEST(Workspace, LivesApartShare) {
  const WorkspacePlan plan = plan_workspace({{"a", DType::f32, {1000}, 0, 2}, {"b", DType::f32, {900}, 3, 5}});
  EXPECT_EQ(plan.offsets[0], plan.offsets[1]);
}

TEST(Workspace, FillsAGapBetweenTwoLiveSlots) {
  // big leaves; small takes its place between the others instead of growing the slab.
  const WorkspacePlan plan = plan_workspace({{"low", DType::u8, {8192}, 0, 9},
                                             {"big", DType::u8, {4096}, 0, 1},
                                             {"high", DType::u8, {2048}, 0, 9},
                                             {"small", DType::u8, {1024}, 2, 3}});
  expect_sound(plan);
  EXPECT_EQ(plan.offsets[3], plan.offsets[1]);
}

TEST(Workspace, RandomTablesAreSoundAndRepeatable) {
  uint32_t state = 7;
  const auto next = [&](uint32_t n) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
  };
  for (int round = 0; round < 200; ++round) {
    std::vector<Slot> slots;
    for (uint32_t i = 0, n = 1 + next(25); i < n; ++i) {
      const int first = static_cast<int>(next(20));
      slots.push_back({"slot",
                       next(2) ? DType::bf16 : DType::f32,
                       {1 + static_cast<int64_t>(next(3000))},
                       first,
                       first + static_cast<int>(next(6))});
    }
    const WorkspacePlan plan = plan_workspace(slots), again = plan_workspace(slots);
    expect_sound(plan);
    EXPECT_EQ(plan.offsets, again.offsets);
    int64_t least = 0;  // no plan is smaller than what lives at one call
    for (int call = 0; call < 30; ++call) {
      int64_t alive = 0;
      for (const Slot& s : slots) alive += s.first <= call && call <= s.last ? bytes_of(s) : 0;
      least = std::max(least, alive);
    }
    EXPECT_GE(plan.bytes, least);
  }
}

TEST(Workspace, EmptyTable) {
  HostDevice device;
  const WorkspacePlan plan = plan_workspace({});
  EXPECT_EQ(plan.bytes, 0);
  EXPECT_EQ(Workspace(device, plan, "test").bytes(), 0);
}

TEST(Workspace, SlotsByName) {
  HostDevice device;
  const Workspace w(device, plan_workspace({{"x", DType::bf16, {3, 5}, 0, 1}, {"y", DType::f32, {7}, 0, 1}}), "test");
  EXPECT_EQ(w["x"].shape(), "[3, 5]");
  EXPECT_EQ(w["x"].type, DType::bf16);
  EXPECT_EQ(w["y"].shape(), "[7]");
  EXPECT_EQ(device.allocations(), 1);
  EXPECT_DEATH(w["z"], "no workspace slot named 'z'");
}

#ifndef NDEBUG
const std::vector<Slot> kTable = {{"x", DType::f32, {100}, 0, 1}, {"y", DType::f32, {100}, 2, 3}};

TEST(Workspace, EndedSlotsAreNaN) {
  HostDevice device;
  Workspace w(device, plan_workspace(kTable), "test");
  EXPECT_TRUE(std::isnan(host<float>(w["x"])[0]));  // before the first write, too
  w.enter(0);
  host<float>(w["x"])[99] = 1;
  w.enter(1);
  EXPECT_EQ(host<float>(w["x"])[99], 1);
  w.enter(2);
  EXPECT_TRUE(std::isnan(host<float>(w["x"])[99]));
  host<float>(w["y"])[99] = 2;
  w.enter(3);
  EXPECT_EQ(host<float>(w["y"])[99], 2);
  w.enter(0);  // the next forward
  EXPECT_TRUE(std::isnan(host<float>(w["y"])[99]));
}

TEST(Workspace, WritingBehindASlotIsCaught) {
  HostDevice device;
  Workspace w(device, plan_workspace(kTable), "test");
  w.enter(0);
  std::memset(w["x"].data + 400, 0, 1);
  EXPECT_DEATH(w.enter(2), "'x' was written behind its end");
}
#endif

}  // namespace
}  // namespace h3
