// Dispatch: which command, and what its failure looks like to the shell.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <new>

#include "apps/cli/command.h"
#include "base/error.h"
#include "base/nearest.h"
#include "pipeline/report.h"

namespace h3 {
namespace {

std::vector<std::string> names_of(const Command& command) {
  std::vector<std::string> names = {command.name};
  std::string word;
  for (const char* c = command.aliases; *c != '\0'; ++c) {
    if (*c == ',') {
      names.push_back(std::move(word));
      word.clear();
    } else if (*c != ' ') {
      word += *c;
    }
  }
  if (!word.empty()) names.push_back(word);
  return names;
}

// The command that `words` start with, and how many words its name has ("bench eval" has two). The longest name wins:
// "bench eval" is not "bench" with an argument, in whatever order the table lists them.
const Command* find_command(const std::vector<std::string>& words, std::span<const Command> commands, size_t& used) {
  for (used = std::min<size_t>(words.size(), 2); used > 0; --used) {
    const std::string start = used == 2 ? words[0] + " " + words[1] : words[0];
    for (const Command& command : commands) {
      const std::vector<std::string> names = names_of(command);
      if (std::find(names.begin(), names.end(), start) != names.end()) return &command;
    }
  }
  return nullptr;
}

[[noreturn]] void unknown_command(const std::string& word, std::span<const Command> commands) {
  std::vector<std::string> names;
  for (const Command& command : commands) {
    for (const std::string& name : names_of(command)) names.push_back(name);
  }
  const std::string hint = suggestion(word, names);
  fail(Code::usage, "unknown command %s%s", word.c_str(), hint.empty() ? ", see h3 --help" : hint.c_str());
}

int run_help(const std::vector<std::string>& words, std::span<const Command> commands) {
  std::vector<std::string> rest(words.begin() + 1, words.end());
  const Arguments arguments = parse_arguments(rest, kHelp);
  if (arguments.on("markdown")) {
    std::fputs(markdown_text(commands).c_str(), stdout);
  } else if (arguments.on("man")) {
    std::fputs(manual_text(commands).c_str(), stdout);
  } else if (arguments.positional.empty()) {
    std::fputs(overview_text(commands).c_str(), stdout);
  } else {
    size_t used = 0;
    const Command* const command = find_command(arguments.positional, commands, used);
    if (command == nullptr) unknown_command(arguments.positional[0], commands);
    std::fputs(help_text(*command).c_str(), stdout);
  }
  return 0;
}

int dispatch(const std::vector<std::string>& words, std::span<const Command> commands) {
  if (words.empty()) {
    std::fputs(overview_text(commands).c_str(), stderr);
    return 2;
  }
  if (words[0] == "--version") {
    std::printf("h3 %s\n", engine_version());
    return 0;
  }
  if (words[0] == "--help" || words[0] == "-h") {
    std::fputs(overview_text(commands).c_str(), stdout);
    return 0;
  }
  if (words[0] == "help") return run_help(words, commands);
  size_t used = 0;
  const Command* const command = find_command(words, commands, used);
  if (command == nullptr) unknown_command(words[0], commands);
  Arguments arguments = parse_arguments({words.begin() + static_cast<std::ptrdiff_t>(used), words.end()}, command->bit);
  if (arguments.on("help")) {
    std::fputs(help_text(*command).c_str(), stdout);
    return 0;
  }
  if (*command->positional == '\0' && !arguments.positional.empty()) {
    fail(Code::usage, "%s takes no argument, found %s", command->name, arguments.positional[0].c_str());
  }
  arguments.command_line = words;
  arguments.command_line.insert(arguments.command_line.begin(), "h3");
  return command->run(arguments);
}

// Text of files and paths goes into messages; a message is one line without control characters.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

int exit_code(Code code) {
  switch (code) {
    case Code::usage: return 2;
    case Code::cancelled: return 130;
    default: return 1;
  }
}

}  // namespace

int run_cli(int argc, char** argv, std::span<const Command> commands) {
  // A file-size limit then fails the write with an error instead of killing the process with its half file.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return dispatch(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc), commands);
  } catch (const Error& error) {
    std::fprintf(stderr, "h3: %s\n", one_line(error.what()).c_str());
    return exit_code(error.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "h3: out of memory, close other programs or ask for a smaller or shorter clip\n");
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "h3: %s\n", one_line(error.what()).c_str());
    return 1;
  }
}

}  // namespace h3
