// Runs the real program in a folder of its own and looks at what comes out.
#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

namespace h3 {

struct Outcome {
  int code = -1;  // exit code; 128 + signal when killed by one
  std::string out, err;
  double signal_seconds = 0;  // from the signal to the end, when one was sent
};

struct RunOptions {
  std::vector<std::string> environment;  // "H3_STEPS=4"
  int64_t file_limit = -1;               // RLIMIT_FSIZE in bytes
  std::string interrupt_at;              // a signal as soon as stderr holds this text
  std::string interrupt_at_file;         // or as soon as this file is in the working folder
  int signal = SIGINT;
};

// A fixture with an empty working folder; removed afterwards.
class ProgramTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  Outcome run(const std::vector<std::string>& arguments, const RunOptions& options = {}) const;
  // Expects exit code `code`, a last line on stderr that starts "h3: " and holds every text of `parts`, nothing on
  // stdout, and no new file.
  void expect_refused(const std::vector<std::string>& arguments, int code, const std::vector<std::string>& parts,
                      const RunOptions& options = {}) const;
  std::vector<std::string> files() const;  // in the working folder, sorted
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& bytes) const;
  std::string read(const std::string& name) const;

  std::filesystem::path folder_;
};

// A small, quick request of the embedded demo model.
std::vector<std::string> quick(const std::vector<std::string>& more = {});

}  // namespace h3
