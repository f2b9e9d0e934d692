#include "base/job_thread.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace h3 {
namespace {

TEST(JobThread, DoesJobsInTurn) {
  std::vector<int> done;
  {
    JobThread thread(2);
    for (int round = 0; round < 50; ++round) {
      for (const size_t place : {size_t{0}, size_t{1}}) {
        thread.wait(place);
        thread.start(place, [&done, round, place] { done.push_back(2 * round + static_cast<int>(place)); });
      }
    }
  }  // ends behind the last
  ASSERT_EQ(done.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(done[static_cast<size_t>(i)], i);
}

// What fails is told to whoever waits for its place, once, and to nobody else.
TEST(JobThread, AFailureWaitsForItsPlace) {
  JobThread thread(2);
  int value = 0;
  for (int round = 0; round < 200; ++round) {
    thread.start(0, [round] { throw std::runtime_error(std::to_string(round)); });
    thread.start(1, [&value] { ++value; });
    thread.wait(1);
    EXPECT_EQ(value, round + 1);
    try {
      thread.wait(0);
      ADD_FAILURE() << "round " << round << " did not fail";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), std::to_string(round));
    }
    EXPECT_NO_THROW(thread.wait(0));
  }
}

TEST(JobThread, ADroppedFailureIsForgotten) {
  JobThread thread(1);
  thread.start(0, [] { throw std::runtime_error("nobody asks"); });
  thread.drop(0);
  int value = 0;
  thread.start(0, [&value] { value = 1; });
  EXPECT_NO_THROW(thread.wait(0));
  EXPECT_EQ(value, 1);
}

}  // namespace
}  // namespace h3
