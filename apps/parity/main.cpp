// h3-parity --golden DIR [--backend ref|cpu|...] [--shadow] [--stage NAME]... [--threads N] [--json]
// --shadow repeats every call on the oracle and stops a stage at the first one that diverges.
// Fails on any miss, on NaN, on files no stage knows, and on zero cases.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "apps/parity/suite.h"
#include "backends/list.h"
#include "base/error.h"
#include "ops/shadow.h"

namespace h3 {
namespace {

struct Arguments {
  std::string golden, backend = "cpu";
  std::vector<std::string> stages;
  int threads = 0;
  bool json = false, shadow = false;
};

int parse_threads(const std::string& text) {
  char* end = nullptr;
  const long threads = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || threads < 1 || threads > 1024) {
    fail(Code::usage, "--threads %s: expected 1..1024", text.c_str());
  }
  return static_cast<int>(threads);
}

Arguments parse(int argc, char** argv) {
  Arguments args;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--json") {
      args.json = true;
      continue;
    }
    if (flag == "--shadow") {
      args.shadow = true;
      continue;
    }
    if (flag != "--golden" && flag != "--backend" && flag != "--stage" && flag != "--threads") {
      fail(Code::usage,
           "unknown argument %s; usage: h3-parity --golden DIR [--backend NAME] [--shadow] [--stage NAME]... "
           "[--threads N] [--json]",
           flag.c_str());
    }
    if (i + 1 >= argc) fail(Code::usage, "%s needs a value", flag.c_str());
    const std::string value = argv[++i];
    if (flag == "--golden")
      args.golden = value;
    else if (flag == "--backend")
      args.backend = value;
    else if (flag == "--stage")
      args.stages.push_back(value);
    else
      args.threads = parse_threads(value);
  }
  if (args.golden.empty()) fail(Code::usage, "--golden DIR is required");
  return args;
}

Json to_json(const Verdict& v) {
  Json row = Json::object({{"stage", v.stage}, {"case", v.name}});
  row.set("verdict", v.skipped ? "skip" : v.passed ? "pass" : "FAIL");
  if (v.comparison.count > 0) {
    row.set("rel_l2", v.comparison.rel_l2).set("max_abs", v.comparison.max_abs).set("count", v.comparison.count);
    if (v.limits.rel_l2 >= 0) row.set("limit_rel_l2", v.limits.rel_l2);
    if (v.limits.max_abs >= 0) row.set("limit_max_abs", v.limits.max_abs);
  }
  if (!v.note.empty()) row.set("note", v.note);
  return row;
}

void print(const Verdict& v) {
  std::string numbers = v.skipped ? "-" : "exact";
  if (v.comparison.count > 0) {
    numbers = strf("rel L2 %.2e  max abs %.2e  limit", v.comparison.rel_l2, v.comparison.max_abs);
    if (v.limits.rel_l2 >= 0) numbers += strf(" %.0e", v.limits.rel_l2);
    if (v.limits.max_abs >= 0) numbers += strf(" (abs %.0e)", v.limits.max_abs);
  }
  std::printf("%-10s %-52s %-58s %s%s%s\n", v.stage.c_str(), v.name.c_str(), numbers.c_str(),
              v.skipped  ? "skip"
              : v.passed ? "pass"
                         : "FAIL",
              v.note.empty() ? "" : ": ", v.note.c_str());
  std::fflush(stdout);
}

bool selected(const Arguments& args, const std::string& stage) {
  if (args.stages.empty()) return true;
  for (const std::string& name : args.stages) {
    if (name == stage) return true;
  }
  return false;
}

void run_stages(const Arguments& args, Suite& suite) {
  for (const std::string& name : args.stages) {
    bool known = false;
    for (const StageRow& row : parity_stages()) known = known || name == row.name;
    if (!known) fail(Code::usage, "--stage %s: no such stage", name.c_str());
  }
  for (const StageRow& row : parity_stages()) {
    if (!selected(args, row.name)) continue;
    suite.begin_stage(row.name);
    try {
      row.run(suite);
    } catch (const Error& error) {
      suite.fail("(stage)", error.what());
    }
  }
  if (!args.stages.empty()) return;
  suite.begin_stage("inventory");
  for (const std::string& name : suite.unclaimed()) suite.fail(name, "no stage knows this file");
}

int run(int argc, char** argv) {
  const Arguments args = parse(argc, argv);
  ThreadPool pool(args.threads);
  Log log;
  Context context{pool, log};
  std::unique_ptr<Ops> ops = make_backend(args.backend, context);
  if (args.shadow) ops = make_shadow(std::move(ops), make_backend("ref", context));
  Suite suite(args.golden, *ops, [&](const Verdict& v) {
    if (args.json)
      std::printf("%s\n", to_json(v).dump().c_str());
    else
      print(v);
  });
  run_stages(args, suite);
  const bool ok = suite.failed() == 0 && suite.passed() > 0;
  if (args.json) {
    const Json summary = Json::object({{"backend", ops->name()},
                                       {"passed", suite.passed()},
                                       {"failed", suite.failed()},
                                       {"skipped", suite.skipped()},
                                       {"ok", ok}});
    std::printf("%s\n", summary.dump().c_str());
  } else {
    std::printf("%s: %d passed, %d failed, %d skipped%s\n", ops->name(), suite.passed(), suite.failed(),
                suite.skipped(), suite.passed() == 0 ? " (no case ran: that is a failure)" : "");
  }
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace h3

int main(int argc, char** argv) {
  try {
    return h3::run(argc, argv);
  } catch (const h3::Error& error) {
    std::fprintf(stderr, "h3-parity: %s\n", error.what());
    return error.code() == h3::Code::usage ? 2 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "h3-parity: %s\n", error.what());
    return 1;
  }
}
