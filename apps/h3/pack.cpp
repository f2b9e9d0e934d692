// h3 pack and h3 verify: from flags to options, and what they print.
#include "apps/pack/pack.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "apps/cli/command.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/run_flags.h"
#include "apps/cli/terminal.h"
#include "apps/pack/verify.h"
#include "base/error.h"
#include "pipeline/setup.h"

namespace h3 {
namespace {

struct PartName {
  const char* name;
  bool PackParts::*part;
};
constexpr PartName kPartNames[] = {
    {"transformer", &PackParts::dit},
    {"conditioner", &PackParts::conditioner},
    {"vision", &PackParts::vision},
    {"video-decoder", &PackParts::video_decoder},
    {"video-encoder", &PackParts::video_encoder},
    {"audio-decoder", &PackParts::audio_decoder},
    {"audio-encoder", &PackParts::audio_encoder},
};

PackParts parts_without(const std::string& list) {
  PackParts parts;
  std::string word;
  for (const char c : list + ",") {
    if (c != ',') {
      word += c;
      continue;
    }
    if (word.empty()) continue;
    bool known = false;
    std::string names;
    for (const PartName& row : kPartNames) {
      names += (names.empty() ? "" : ", ") + std::string(row.name);
      if (word != row.name) continue;
      parts.*row.part = false;
      known = true;
    }
    if (!known) fail(Code::usage, "--without: \"%s\" is not a part, give %s", word.c_str(), names.c_str());
    word.clear();
  }
  return parts;
}

// PATH or PATH:STRENGTH.
std::pair<std::string, float> adapter_of(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon + 1 == text.size()) return {text, 1.0f};
  const std::string number = text.substr(colon + 1);
  char* end = nullptr;
  const float strength = std::strtof(number.c_str(), &end);
  if (*end != '\0') return {text, 1.0f};  // the colon belongs to the path
  if (!std::isfinite(strength) || std::fabs(strength) > 10) {
    fail(Code::usage, "--merge: a strength of %s is not allowed, give -10 to 10, for example 1", number.c_str());
  }
  return {text.substr(0, colon), strength};
}

PackOptions pack_options(const Arguments& arguments) {
  SessionOptions session;
  session.models = arguments.positional;
  for (const std::string& path : arguments.all("model")) session.models.push_back(path);
  session.tokenizer = arguments.text("tokenizer");
  session.partition = arguments.text("partition");
  session.qkv_order = arguments.text("qkv-order");
  PackOptions options;
  options.inputs = open_options(session);
  if (options.inputs.paths.empty() && !arguments.has("random"))
    fail(Code::usage, "pack: no input, name model files or folders");
  options.output = arguments.text("output", "model.cmf");
  options.policy = QuantPolicy::parse(arguments.text("quant"));
  options.te_layers = arguments.whole("te-layers", 0);
  if (arguments.has("te-layers") && (options.te_layers < 1 || options.te_layers > 64)) {
    fail(Code::usage, "--te-layers: %d is not allowed, give 1 to 64, for example 50", options.te_layers);
  }
  options.parts = parts_without(arguments.text("without"));
  const std::string adaln = arguments.text("adaln");
  if (!adaln.empty() && adaln != "full" && adaln != "curve") {
    fail(Code::usage, "--adaln: \"%s\" is not known, give full or curve", adaln.c_str());
  }
  options.adaln = adaln == "full" ? AdalnForm::full : adaln == "curve" ? AdalnForm::curve : AdalnForm::automatic;
  options.check_velocity = arguments.on("check-velocity");
  options.check_adaln = arguments.on("check-adaln");
  for (const std::string& text : arguments.all("merge")) options.adapters.push_back(adapter_of(text));
  return options;
}

int threads_of(const Arguments& arguments) {
  const int threads = arguments.whole("threads", 0);
  if (threads < 0 || threads > 1024) {
    fail(Code::usage, "--threads: %d is not allowed, give 1 to 1024, for example 4", threads);
  }
  return threads;
}

}  // namespace

int run_pack(Arguments& arguments) {
  const PackOptions options = pack_options(arguments);
  Terminal terminal(LogLevel::warn);
  ThreadPool pool(threads_of(arguments));
  Control control;
  control.on_progress = [&](const Progress& progress) { terminal.progress(progress); };
  const std::string random = arguments.text("random");
  if (!random.empty() && random != "release" && random != "release-4b") {
    fail(Code::usage, "--random: \"%s\" is not known, give release or release-4b", random.c_str());
  }
  if (!random.empty() && !options.inputs.paths.empty()) {
    fail(Code::usage, "pack: --random makes the weights, but %s is named too", options.inputs.paths[0].c_str());
  }
  PackReport report;
  {
    const Interruptible interruptible(control);
    report = random.empty() ? pack_model(options, pool, terminal.log(), control)
                            : pack_random(0, random == "release-4b", options, pool, terminal.log(), control);
  }
  terminal.clear();
  if (arguments.on("json")) {
    std::printf("%s\n", report.to_json().dump(1).c_str());
  } else {
    std::printf("%s%s\n", report.to_text().c_str(), options.output.c_str());
  }
  return 0;
}

int run_verify(Arguments& arguments) {
  if (arguments.positional.empty()) fail(Code::usage, "verify: no file, name one or more model files");
  const std::string source = arguments.text("repair");
  if (!source.empty() && arguments.positional.size() > 1) {
    fail(Code::usage, "verify: --repair mends one file at a time, %zu are named", arguments.positional.size());
  }
  ThreadPool pool(threads_of(arguments));
  bool good = true;
  for (const std::string& path : arguments.positional) {
    if (!source.empty()) {
      for (const std::string& line : repair_file(path, source, pool).lines) std::printf("%s\n", line.c_str());
    }
    const VerifyReport report = verify_file(path, pool);
    for (const std::string& line : report.lines) std::printf("%s\n", line.c_str());
    good = good && report.good;
  }
  return good ? 0 : 1;
}

}  // namespace h3
