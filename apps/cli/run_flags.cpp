#include "apps/cli/run_flags.h"

#include <cstdlib>

#include "apps/cli/terminal.h"
#include "base/error.h"
#include "pipeline/placement.h"

namespace h3 {

LogLevel level_of(const Arguments& arguments) {
  return parse_log_level(arguments.on("verbose") ? "info" : arguments.text("log-level", "warn"));
}

std::vector<int64_t> row_counts(const std::string& text) {
  std::vector<int64_t> rows;
  std::string word;
  for (const char c : text + ",") {
    if (c != ',') {
      word += c;
      continue;
    }
    const bool whole = !word.empty() && word.size() < 7 && word.find_first_not_of("0123456789") == std::string::npos;
    if (!whole || std::atoi(word.c_str()) < 1) {
      fail(Code::usage, "--rows: \"%s\" is not a number of rows, give a list such as 480,1874", word.c_str());
    }
    rows.push_back(std::atoi(word.c_str()));
    word.clear();
  }
  return rows;
}

SessionOptions session_options(const Arguments& arguments) {
  SessionOptions options;
  options.models = arguments.all("model");
  options.tokenizer = arguments.text("tokenizer");
  options.partition = arguments.text("partition");
  options.qkv_order = arguments.text("qkv-order");
  options.tap = arguments.whole("te-layers", 0);
  if (arguments.has("te-layers") && options.tap < 1) {
    fail(Code::usage, "--te-layers: %d is not allowed, give 1 to 64, for example 50", options.tap);
  }
  options.device = arguments.text("device", "auto");
  for (const std::string& forced : arguments.all("force")) {
    const size_t equals = forced.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == forced.size()) {
      fail(Code::usage, "--force: \"%s\" is not OP=KERNEL, for example linear=f32_scalar", forced.c_str());
    }
    options.device += "," + forced;  // backends/list.h
  }
  options.threads = arguments.whole("threads", 0);
  options.budget.mode = parse_plan_mode(arguments.text("plan", "auto"));
  if (arguments.has("vram")) options.budget.vram = parse_memory("--vram", arguments.text("vram"));
  if (arguments.has("weights")) {
    const std::string weights = arguments.text("weights");
    if (weights != "random" && weights != "random-q4tp" && weights != "random-fp8") {
      fail(Code::usage, "--weights: \"%s\" is not known, give random, random-q4tp or random-fp8", weights.c_str());
    }
    if (weights != "random") options.synthetic_format = weights.substr(weights.find('-') + 1);
    if (!options.models.empty()) fail(Code::usage, "--weights random replaces the model; leave --model out");
    options.synthetic_layers = arguments.whole("layers", 2);
    if (options.synthetic_layers < 1 || options.synthetic_layers > 50) {
      fail(Code::usage, "--layers: %d is not allowed, give 1 to 50", options.synthetic_layers);
    }
  } else if (arguments.has("layers")) {
    fail(Code::usage, "--layers needs --weights random");
  }
  options.prepared = arguments.text("prepared");
  if (arguments.has("ram")) options.ram_limit = parse_memory("--ram", arguments.text("ram"));
  for (const std::string& named : arguments.all("turbo-lora")) {
    const size_t equals = named.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == named.size()) {
      fail(Code::usage, "--turbo-lora: \"%s\" is not NAME=FILE, for example 4step=turbo_4step.safetensors",
           named.c_str());
    }
    options.turbo_files[named.substr(0, equals)] = named.substr(equals + 1);
  }
  options.lora_partial = arguments.on("lora-partial");
  options.shadow = arguments.on("shadow");
  return options;
}

}  // namespace h3
