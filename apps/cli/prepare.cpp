// h3 prepare.
#include <cstdio>

#include "apps/cli/command.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/run_flags.h"
#include "apps/cli/terminal.h"
#include "base/error.h"
#include "base/file_map.h"
#include "pipeline/session.h"

namespace h3 {
namespace {

constexpr const char* kDefaultRows = "1874,19300,37726";  // 512x288x39, 960x544x124 and 1344x768x124

std::string text_of(const Json& report) {
  std::string text;
  for (const Json& matmul : report.at("matmuls").items()) {
    text += strf("%-28s %6lld to %6lld rows: %s\n", matmul.at("weight").as_string().c_str(),
                 static_cast<long long>(matmul.at("above").as_int() + 1),
                 static_cast<long long>(matmul.at("upto").as_int()),
                 matmul.at("candidate").as_int() == 0 ? "the library's first proposal stays"
                                                      : "another proposal is faster and is taken");
  }
  for (const Json& replay : report.at("replays").items()) {
    text += strf("a block of %lld rows with %lld time(s): relative difference %.1e\n",
                 static_cast<long long>(replay.at("rows").as_int()),
                 static_cast<long long>(replay.at("times").as_int()), replay.at("rel_l2").as_double());
  }
  return text + report.at("file").as_string() + "\n";
}

}  // namespace

int run_prepare(Arguments& arguments) {
  Terminal terminal(level_of(arguments));
  SessionOptions options = session_options(arguments);
  options.models.insert(options.models.begin(), arguments.positional.begin(), arguments.positional.end());
  const std::vector<int64_t> rows = row_counts(arguments.text("rows", kDefaultRows));
  const std::string file = arguments.text("output", "plans.h3p");
  { const AtomicFile probe(file); }  // refuses now what would fail after the work
  Session session(options, terminal.log());
  Request request = arguments.request();
  request.output.clear();
  if (request.prompt.empty()) request.prompt = kAnyPrompt;  // of what is resolved only the arithmetic counts
  Control control;
  control.on_progress = [&](const Progress& progress) { terminal.progress(progress); };
  Json report;
  {
    const Interruptible interruptible(control);
    report = session.prepare(request, rows, file, control);
  }
  terminal.clear();
  std::fputs(arguments.on("json") ? (report.dump(1) + "\n").c_str() : text_of(report).c_str(), stdout);
  return 0;
}

}  // namespace h3
