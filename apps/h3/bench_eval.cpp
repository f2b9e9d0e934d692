// h3 bench eval.
#include <cstdio>
#include <cstdlib>

#include "apps/cli/command.h"
#include "apps/cli/run_flags.h"
#include "apps/cli/terminal.h"
#include "base/error.h"
#include "bench/eval.h"

namespace h3 {
namespace {

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text + ",") {
    if (c != ',') {
      word += c;
      continue;
    }
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  }
  return words;
}

EvalOptions eval_options(const Arguments& arguments) {
  EvalOptions options;
  options.file = arguments.text("eval");
  options.request = arguments.request();
  for (const std::string& seed : split_list(arguments.text("seeds")))
    options.seeds.push_back(parse_seed(Json(seed)).value);
  for (const std::string& index : split_list(arguments.text("prompts"))) {
    if (index.size() > 4 || index.find_first_not_of("0123456789") != std::string::npos) {
      fail(Code::usage, "--prompts: \"%s\" is not an index, give a list such as 0,4,19", index.c_str());
    }
    options.prompts.push_back(std::atoi(index.c_str()));
  }
  return options;
}

void print_row(const EvalRow& row) {
  std::string checks;
  for (const auto& [name, value] : row.score.checks) checks += strf(" %s %.2g", name.c_str(), value);
  if (!row.skipped.empty()) checks = " not rendered: " + row.skipped;
  std::string steps;
  if (row.reused + row.forecast > 0) steps = strf(" run %d reused %d forecast %d ", row.run, row.reused, row.forecast);
  std::printf("%3d seed %-3llu %.3f %6.2f s %s%s\n", row.index, static_cast<unsigned long long>(row.seed),
              row.score.mean(), row.seconds, steps.c_str(), checks.c_str());
  std::fflush(stdout);
}

}  // namespace

int run_bench_eval(Arguments& arguments) {
  Terminal terminal(level_of(arguments));
  SessionOptions session_flags = session_options(arguments);
  session_flags.models.insert(session_flags.models.begin(), arguments.positional.begin(), arguments.positional.end());
  session_flags.keep = true;
  const EvalOptions options = eval_options(arguments);
  Session session(session_flags, terminal.log());
  const bool json = arguments.on("json");
  Control control;
  const EvalResult result = run_eval(session, options, control, [&](const EvalRow& row) {
    if (!json) print_row(row);
  });
  if (json) {
    std::printf("%s\n", result.to_json().dump(1).c_str());
  } else {
    const Json summary = result.to_json();
    for (const auto& [name, value] : summary.at("by_check").members()) {
      std::printf("%-10s %.3f (%lld clips)\n", name.c_str(), value.at("mean").as_double(),
                  static_cast<long long>(value.at("clips").as_int()));
    }
    std::printf("overall    %.4f with %d evaluations", result.overall, result.evaluations);
    if (result.recorded) std::printf(" (recorded: %.4f)", *result.recorded);
    std::printf("\n");
  }
  return 0;
}

}  // namespace h3
