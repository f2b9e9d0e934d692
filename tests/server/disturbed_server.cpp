// h3 serve as it is, with a worker that pauses or fails where the environment says. Tests that meet a job in the middle
// start this program instead of h3.
//   H3_TEST_BLOCK_MS=2000          pause at every block, tile or layer
//   H3_TEST_BLOCK_STAGE=denoise    of this stage
//   H3_TEST_FAULT=device@denoise   fail at this stage: device, context, data, or kill (signal 9)
//   H3_TEST_FAULT_ATTEMPTS=2       in so many attempts at a job; 1 if left out
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "apps/h3/serve.h"
#include "apps/server/worker.h"
#include "base/error.h"

namespace {

std::string variable(const char* name, const char* fallback) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : fallback;
}

void disturb(const std::string& stage, int64_t attempt) {
  static const int pause = std::stoi(variable("H3_TEST_BLOCK_MS", "0"));
  static const std::string pause_stage = variable("H3_TEST_BLOCK_STAGE", "denoise");
  static const std::string fault = variable("H3_TEST_FAULT", "");
  if (stage == pause_stage) std::this_thread::sleep_for(std::chrono::milliseconds(pause));
  static const int attempts = std::stoi(variable("H3_TEST_FAULT_ATTEMPTS", "1"));
  if (attempt > attempts || fault.empty() || fault.substr(fault.find('@') + 1) != stage) return;
  if (fault.rfind("kill@", 0) == 0) std::raise(SIGKILL);
  if (fault.rfind("device@", 0) == 0) h3::fail(h3::Code::device, "the device reported an uncorrectable memory error");
  if (fault.rfind("context@", 0) == 0) h3::fail(h3::Code::device, "the device lost its context");
  h3::fail(h3::Code::data, "a file changed while it was read");
}

int run(h3::Arguments& arguments) { return h3::run_serve(arguments, {.on_check = disturb}); }

constexpr h3::Command kCommands[] = {{"serve", "", h3::kServe, "[MODEL]...", "h3 serve, disturbed", "", run}};

}  // namespace

int main(int argc, char** argv) { return h3::run_cli(argc, argv, kCommands); }
