#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace h3 {
namespace {

TEST(ThreadPool, EveryIndexOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      pool.parallel(count, [&](int64_t i) { seen[i].fetch_add(1); });
      for (const std::atomic<int>& n : seen) EXPECT_EQ(n.load(), 1);
    }
  }
}

TEST(ThreadPool, NegativeCountIsNothing) {
  ThreadPool pool(2);
  pool.parallel(-1, [](int64_t) { FAIL(); });
}

TEST(ThreadPool, WorkersAreNumbered) {
  ThreadPool pool(3);
  std::atomic<int> wrong{0};
  pool.parallel_indexed(500, [&](int64_t, int worker) {
    if (worker < 0 || worker >= 3) wrong.fetch_add(1);
  });
  EXPECT_EQ(wrong.load(), 0);
}

TEST(ThreadPool, AWorkerRunsOneTaskAtATime) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<int> overlaps{0};
  pool.parallel_indexed(2000, [&](int64_t, int worker) {
    if (inside[worker].fetch_add(1) != 0) overlaps.fetch_add(1);
    inside[worker].fetch_sub(1);
  });
  EXPECT_EQ(overlaps.load(), 0);
}

TEST(ThreadPool, ExceptionsArriveAndThePoolGoesOn) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.parallel(100,
                               [](int64_t i) {
                                 if (i == 37) throw std::runtime_error("37");
                               }),
                 std::runtime_error);
    std::atomic<int> done{0};
    pool.parallel(100, [&](int64_t) { done.fetch_add(1); });
    EXPECT_EQ(done.load(), 100);
  }
}

TEST(ThreadPool, ManyShortJobs) {  // the hand-over between jobs, for the thread sanitizer
  ThreadPool pool(3);
  int64_t sum = 0;
  for (int round = 0; round < 3000; ++round) {
    int64_t parts[4] = {};
    pool.parallel(4, [&](int64_t i) { parts[i] = i + round; });
    for (int64_t part : parts) sum += part;
  }
  EXPECT_EQ(sum, 4 * (2999 * 3000 / 2) + 6 * 3000);
}

TEST(ThreadPool, TwoPoolsAtOnce) {
  ThreadPool a(2), b(2);
  std::atomic<int> inner{0};
  a.parallel(1, [&](int64_t) { b.parallel(50, [&](int64_t) { inner.fetch_add(1); }); });
  EXPECT_EQ(inner.load(), 50);
}

}  // namespace
}  // namespace h3
