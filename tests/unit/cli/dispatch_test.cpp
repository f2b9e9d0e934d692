// Which command a command line names.
#include <gtest/gtest.h>

#include "apps/cli/command.h"

namespace h3 {
namespace {

std::string ran;

template <int kWhich>
int note(Arguments& arguments) {
  constexpr const char* kNames[] = {"bench", "bench eval", "bench turbo"};
  ran = kNames[kWhich];
  for (const std::string& word : arguments.positional) ran += " [" + word + "]";
  return 0;
}

// The short name stands between the long ones: the order of the table must not matter.
constexpr Command kCommands[] = {
    {"bench eval", "score", kBenchEval, "[MODEL]...", "", "", note<1>},
    {"bench", "", kBench, "KIND", "", "", note<0>},
    {"bench turbo", "", kBenchTurbo, "", "", "", note<2>},
};

std::string runs(std::vector<std::string> words) {
  words.insert(words.begin(), "h3");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  ran = "";
  const int code = run_cli(static_cast<int>(argv.size()), argv.data(), kCommands);
  return code == 0 ? ran : "exit " + std::to_string(code);
}

TEST(Dispatch, TheLongestNameWins) {
  EXPECT_EQ(runs({"bench", "turbo"}), "bench turbo");
  EXPECT_EQ(runs({"bench", "turbo", "--device", "cpu", "--layers", "1"}), "bench turbo");
  EXPECT_EQ(runs({"bench", "eval", "--steps", "4", "model"}), "bench eval [model]");
  EXPECT_EQ(runs({"score", "model"}), "bench eval [model]");
  EXPECT_EQ(runs({"bench", "ops", "--threads", "2"}), "bench [ops]");
  EXPECT_EQ(runs({"bench", "--threads", "2", "ops"}), "bench [ops]");
  EXPECT_EQ(runs({"bench"}), "bench");
}

TEST(Dispatch, UnknownCommandsAreUsageErrors) {
  EXPECT_EQ(runs({"benhc"}), "exit 2");
  EXPECT_EQ(runs({"turbo"}), "exit 2");
  EXPECT_EQ(runs({"bench", "turbo", "extra"}), "exit 2");  // takes no argument
}

}  // namespace
}  // namespace h3
