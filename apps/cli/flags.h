// The flags of every command: one table that drives parsing, --help, docs/cli.md, environment variables and the keys of
// --config files.
//
// Why not a command-line library: the table is the product (docs, environment, config, later completions and the manual
// page come from it), and the command has to build where only a compiler is installed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pipeline/request.h"

namespace h3 {

enum class ValueKind : uint8_t {
  none,  // present or not; true/false in environment and config
  text,
  path,
  choice,  // one of the words in `allowed`, checked by the validator
  whole,   // an int
  number,  // a double
  seed,    // u64 or -1
  size,    // WIDTHxHEIGHT
  shift,   // VIDEO[/AUDIO]
  dump     // STAGE=FILE
};

// Which commands take a flag.
enum CommandBit : uint32_t {
  kGenerate = 1u << 0,
  kInfo = 1u << 1,
  kDevices = 1u << 2,
  kRerun = 1u << 3,
  kBenchEval = 1u << 4,
  kHelp = 1u << 5,
  kServe = 1u << 6,
  kPlan = 1u << 7,
  kBench = 1u << 8,
  kBenchFormats = 1u << 10,
  kCompare = 1u << 11,
  kCompletions = 1u << 12,
  kBenchTurbo = 1u << 13,
  kPack = 1u << 14,
  kVerify = 1u << 15,
  kBenchStart = 1u << 16,
  kPrepare = 1u << 17,
  kBenchAttention = 1u << 18,
  kEvery = ~0u
};

struct Flag {
  const char* section;
  const char* name;     // "first-frame": --first-frame, H3_FIRST_FRAME, first-frame = in a config file
  const char* aliases;  // "-i --init-img", separated by blanks; "" = none
  ValueKind kind;
  const char* value;     // what --help calls the value; "" for ValueKind::none
  const char* fallback;  // the default in words; "" = none
  const char* allowed;   // range or words; "" = any
  const char* field;     // the field of Request it sets; "" = handled by the command
  const char* group;     // flags of one group replace each other across sources; "" = its own name
  bool repeats;
  uint32_t commands;
  const char* help;
};

std::span<const Flag> flag_table();

// "--first-frame", and "H3_FIRST_FRAME".
std::string spelled(const Flag& flag);
std::string environment_name(const Flag& flag);
std::vector<std::string> alias_list(const Flag& flag);

// Where a value came from; later ones win.
enum class Source : uint8_t { config, environment, command_line };

struct Given {
  const Flag* flag = nullptr;
  std::string value;  // "true" / "false" for ValueKind::none
  Source source = Source::command_line;
  std::string origin;  // for reports: "given", "environment H3_STEPS", "config h3.toml"
};

class Arguments {
 public:
  std::vector<std::string> positional;
  std::vector<std::string> command_line;  // of the process, its name first

  bool has(const char* name) const { return find(name) != nullptr; }
  bool on(const char* name) const;  // a ValueKind::none flag
  std::string text(const char* name, const std::string& fallback = "") const;
  int whole(const char* name, int fallback) const;
  std::vector<std::string> all(const char* name) const;  // of a flag that repeats
  // Every given flag that sets a field of the request.
  Request request() const;

  void add(Given given);  // checks the value's kind; Error(usage)
  void settle();          // keeps, per group, only what the strongest source says

 private:
  const Given* find(const char* name) const;
  std::vector<Given> given_;
};

// Parses what follows the command's name, then the environment, then --config. `bit` is the command's.
// Error(usage) for an unknown flag (with the nearest known one), a missing value, or a value of the wrong kind.
Arguments parse_arguments(const std::vector<std::string>& words, uint32_t bit);

// The strict `key = value` subset of TOML that config files are written in: strings, numbers, booleans, arrays of them,
// comments. Error(usage) names file and line.
struct ConfigEntry {
  std::string key;
  std::vector<std::string> values;
  int line = 0;
};
std::vector<ConfigEntry> parse_config(const std::string& text, const std::string& what);

}  // namespace h3
