// The commands of `h3` and what they share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/cli/flags.h"

namespace h3 {

struct Command {
  const char* name;                  // "generate", "bench eval"
  const char* aliases;               // separated by commas; "" = none
  uint32_t bit;                      // its column in the flag table
  const char* positional;            // "[MODEL]...", "" = takes none
  const char* summary;               // one line
  const char* details;               // paragraphs for --help
  int (*run)(Arguments& arguments);  // returns the exit code; throws Error
};

// Finds the command, parses, runs it, turns Errors into one line on stderr and an exit code: 2 usage, 1 run,
// 130 cancelled. argv[0] is the program.
int run_cli(int argc, char** argv, std::span<const Command> commands);

// Commands of apps/cli.
int run_generate(Arguments& arguments);
int run_compare(Arguments& arguments);
int run_plan(Arguments& arguments);
int run_prepare(Arguments& arguments);
int run_rerun(Arguments& arguments);
int run_info(Arguments& arguments);
int run_devices(Arguments& arguments);

std::string overview_text(std::span<const Command> commands);
std::string help_text(const Command& command);
std::string markdown_text(std::span<const Command> commands);  // docs/cli.md
std::string manual_text(std::span<const Command> commands);    // h3.1, in troff
// What a shell reads to complete h3; Error(usage) unless bash, zsh or fish.
std::string completions_text(std::span<const Command> commands, const std::string& shell);

}  // namespace h3
