#include "tests/cli/program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace h3 {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

[[noreturn]] void become(const fs::path& folder, const fs::path& out, const fs::path& err,
                         const std::vector<std::string>& arguments, const RunOptions& options) {
  const int out_fd = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const int err_fd = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const int null_fd = ::open("/dev/null", O_RDONLY);
  if (::chdir(folder.c_str()) != 0 || ::dup2(out_fd, 1) < 0 || ::dup2(err_fd, 2) < 0 || ::dup2(null_fd, 0) < 0) {
    ::_exit(99);
  }
  if (options.file_limit >= 0) {
    const struct rlimit limit { static_cast<rlim_t>(options.file_limit), static_cast<rlim_t>(options.file_limit) };
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  for (const std::string& entry : options.environment) ::putenv(const_cast<char*>(entry.c_str()));
  std::vector<char*> argv = {const_cast<char*>(H3_BINARY)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  ::execv(H3_BINARY, argv.data());
  ::_exit(99);
}

}  // namespace

void ProgramTest::SetUp() {
  const testing::TestInfo* const info = testing::UnitTest::GetInstance()->current_test_info();
  folder_ = fs::path(testing::TempDir()) / ("h3_cli_" + std::string(info->name()) + "_" + std::to_string(::getpid()));
  fs::remove_all(folder_);
  fs::create_directories(folder_);
}

void ProgramTest::TearDown() {
  fs::remove_all(folder_);
  fs::remove(folder_.string() + ".out");
  fs::remove(folder_.string() + ".err");
}

Outcome ProgramTest::run(const std::vector<std::string>& arguments, const RunOptions& options) const {
  const fs::path out = folder_.string() + ".out", err = folder_.string() + ".err";
  fs::remove(err);
  const pid_t child = ::fork();
  if (child == 0) become(folder_, out, err, arguments, options);
  Outcome outcome;
  int status = 0;
  const Clock::time_point start = Clock::now();
  Clock::time_point sent = start;
  bool waiting = !options.interrupt_at.empty() || !options.interrupt_at_file.empty();
  const auto due = [&] {
    return options.interrupt_at_file.empty() ? slurp(err).find(options.interrupt_at) != std::string::npos
                                             : fs::exists(folder_ / options.interrupt_at_file);
  };
  while (::waitpid(child, &status, WNOHANG) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (waiting && due()) {
      ::kill(child, options.signal);
      sent = Clock::now();
      waiting = false;
    }
    if (Clock::now() - start > std::chrono::minutes(5)) ::kill(child, SIGKILL);
  }
  outcome.signal_seconds = std::chrono::duration<double>(Clock::now() - sent).count();
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = slurp(out);
  outcome.err = slurp(err);
  return outcome;
}

void ProgramTest::expect_refused(const std::vector<std::string>& arguments, int code,
                                 const std::vector<std::string>& parts, const RunOptions& options) const {
  std::string command;
  for (const std::string& argument : arguments) command += " " + argument;
  SCOPED_TRACE("h3" + command);
  const std::vector<std::string> before = files();
  const Outcome outcome = run(arguments, options);
  EXPECT_EQ(outcome.code, code) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  // Warnings and notes may stand before it; the error itself is one line, the last.
  const std::string& err = outcome.err;
  ASSERT_FALSE(err.empty());
  EXPECT_EQ(err.back(), '\n');
  const size_t line = err.size() < 2 ? std::string::npos : err.rfind('\n', err.size() - 2);
  const std::string last = err.substr(line == std::string::npos ? 0 : line + 1);
  EXPECT_EQ(last.rfind("h3: ", 0), 0u) << err;
  for (const std::string& part : parts) {
    EXPECT_NE(last.find(part), std::string::npos) << "missing \"" << part << "\" in: " << err;
  }
  EXPECT_EQ(files(), before);
}

std::vector<std::string> ProgramTest::files() const {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder_)) {
    names.push_back(fs::relative(entry.path(), folder_).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void ProgramTest::write(const std::string& name, const std::string& bytes) const {
  fs::create_directories((folder_ / name).parent_path());
  std::ofstream(folder_ / name, std::ios::binary) << bytes;
}

std::string ProgramTest::read(const std::string& name) const { return slurp(folder_ / name); }

std::vector<std::string> quick(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"generate", "-p",       "A red circle moves right on a black background.",
                                        "--steps",  "1",        "--size",
                                        "64x64",    "--frames", "5",
                                        "-o",       "clip.y4m"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

}  // namespace h3
