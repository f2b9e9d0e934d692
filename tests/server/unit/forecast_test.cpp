// Who waits for whose plan.
#include "apps/server/forecast.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>

namespace h3::server {
namespace {

Resolved clip(int frames) {
  Resolved resolved;
  resolved.request.prompt = "a red ball";
  resolved.request.frames = frames;
  return resolved;
}

constexpr std::chrono::seconds kSoon(20);

// Plans of `held` frames wait until they are let go; the seconds of a plan are the number of those made before.
struct Slow {
  explicit Slow(int held_frames) : held(held_frames) {}

  RunPlan make(const Resolved& resolved) {
    RunPlan plan;
    plan.seconds = made++;
    if (resolved.request.frames == held) {
      begun.set_value();
      gate.get_future().wait();
    }
    return plan;
  }

  const int held;
  std::atomic<int> made{0};
  std::promise<void> begun, gate;
  Forecast forecast{[this](const Resolved& resolved, const PlanMachine&) { return make(resolved); }};
};

TEST(Forecast, APlanWaitsForNoOtherOne) {
  Slow slow(5);
  std::future<RunPlan> first = std::async(std::launch::async, [&] { return slow.forecast.plan(clip(5), {}); });
  slow.begun.get_future().wait();
  std::future<RunPlan> other = std::async(std::launch::async, [&] { return slow.forecast.plan(clip(22), {}); });
  EXPECT_EQ(other.wait_for(kSoon), std::future_status::ready);
  slow.gate.set_value();
  EXPECT_EQ(first.get().seconds, 0);
  EXPECT_EQ(other.get().seconds, 1);
}

TEST(Forecast, TheSamePlanIsMadeOnce) {
  Slow slow(5);
  std::future<RunPlan> first = std::async(std::launch::async, [&] { return slow.forecast.plan(clip(5), {}); });
  slow.begun.get_future().wait();
  PlanMachine machine;
  machine.ram = 7;
  Resolved same = clip(5);
  same.request.prompt = "other words";
  std::future<RunPlan> second = std::async(std::launch::async, [&] { return slow.forecast.plan(same, machine); });
  slow.gate.set_value();
  EXPECT_EQ(first.get().ram.available, 0);
  const RunPlan plan = second.get();
  EXPECT_EQ(plan.seconds, 0);
  EXPECT_EQ(plan.ram.available, 7);
  slow.forecast.plan(clip(5), {});
  EXPECT_EQ(slow.made, 1);
}

TEST(Forecast, AFailureIsNotRemembered) {
  int tries = 0;
  Forecast forecast([&](const Resolved&, const PlanMachine&) -> RunPlan {
    if (++tries == 1) throw std::runtime_error("no memory");
    return {};
  });
  EXPECT_THROW(forecast.plan(clip(5), {}), std::runtime_error);
  forecast.plan(clip(5), {});
  EXPECT_EQ(tries, 2);
}

}  // namespace
}  // namespace h3::server
