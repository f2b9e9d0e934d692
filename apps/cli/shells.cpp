// Text made from the tables for shells and for man: completions of bash, zsh and fish, and the manual page.
#include <algorithm>
#include <set>

#include "apps/cli/command.h"
#include "base/error.h"
#include "base/text.h"
#include "pipeline/report.h"

namespace h3 {
namespace {

std::vector<std::string> words_of(const std::string& list, const char* separators) {
  std::vector<std::string> words;
  for (size_t at = 0; at < list.size();) {
    const size_t start = list.find_first_not_of(separators, at);
    if (start == std::string::npos) break;
    const size_t end = std::min(list.find_first_of(separators, start), list.size());
    words.push_back(list.substr(start, end - start));
    at = end;
  }
  return words;
}

// First words of all commands: "bench eval" and "bench" are one.
std::vector<std::string> first_words(std::span<const Command> commands) {
  std::vector<std::string> words;
  for (const Command& command : commands) {
    const std::string word = words_of(command.name, " ")[0];
    if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
  }
  words.emplace_back("help");
  return words;
}

// Bits of every command that starts with `word`.
uint32_t bits_of(std::span<const Command> commands, const std::string& word) {
  uint32_t bits = 0;
  for (const Command& command : commands) {
    if (words_of(command.name, " ")[0] == word) bits |= command.bit;
  }
  return word == "help" ? static_cast<uint32_t>(kHelp) : bits;
}

std::vector<std::string> choices_of(const Flag& flag) {
  return flag.kind == ValueKind::choice ? words_of(flag.allowed, ", ") : std::vector<std::string>();
}

std::string bash_text(std::span<const Command> commands) {
  std::string out =
      "# Completion of h3 for bash: h3 completions bash > /etc/bash_completion.d/h3\n"
      "_h3() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} flags=\n"
      "  COMPREPLY=()\n"
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W \"" +
      joined(first_words(commands), " ") +
      " --help --version\" -- \"$current\"))\n"
      "    return\n  fi\n  case $previous in\n";
  std::set<std::string> seen;
  for (const Flag& flag : flag_table()) {
    const std::vector<std::string> choices = choices_of(flag);
    if (choices.empty() || !seen.insert(flag.name).second) continue;
    out += "    " + spelled(flag) + ") COMPREPLY=($(compgen -W \"" + joined(choices, " ") +
           "\" -- \"$current\")); return ;;\n";
  }
  out += "  esac\n  case ${COMP_WORDS[1]} in\n";
  for (const std::string& word : first_words(commands)) {
    std::string flags;
    for (const Flag& flag : flag_table()) {
      if ((flag.commands & bits_of(commands, word)) != 0) flags += (flags.empty() ? "" : " ") + spelled(flag);
    }
    out += "    " + word + ") flags=\"" + flags + "\" ;;\n";
  }
  return out +
         "  esac\n"
         "  case $current in\n"
         "    -*) COMPREPLY=($(compgen -W \"$flags\" -- \"$current\")) ;;\n"
         "    *) COMPREPLY=($(compgen -f -- \"$current\")) ;;\n"
         "  esac\n}\n"
         "complete -o filenames -F _h3 h3\n";
}

// In single quotes of a POSIX shell; `also` are characters that zsh's _arguments wants escaped.
std::string quoted(const std::string& text, const std::string& also) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (also.find(c) != std::string::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_text(std::span<const Command> commands) {
  std::string out =
      "#compdef h3\n"
      "# Completion of h3 for zsh: h3 completions zsh > _h3, in a folder of $fpath.\n"
      "_h3() {\n  local -a commands\n  commands=(\n";
  std::set<std::string> listed;
  for (const Command& command : commands) {
    const std::string word = words_of(command.name, " ")[0];
    if (listed.insert(word).second) out += "    '" + word + ":" + quoted(command.summary, ":") + "'\n";
  }
  out +=
      "    'help:Explain a command'\n  )\n"
      "  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n"
      "  case $words[2] in\n";
  for (const std::string& word : first_words(commands)) {
    out += "    " + word + ")\n      _arguments \\\n";
    for (const Flag& flag : flag_table()) {
      if ((flag.commands & bits_of(commands, word)) == 0) continue;
      out +=
          std::string("        '") + (flag.repeats ? "*" : "") + spelled(flag) + "[" + quoted(flag.help, "[]:") + "]";
      if (flag.kind != ValueKind::none) {
        const std::vector<std::string> choices = choices_of(flag);
        out += std::string(":") + quoted(flag.value, ":") + ":";
        out += choices.empty() ? flag.kind == ValueKind::path ? "_files" : " " : "(" + joined(choices, " ") + ")";
      }
      out += "' \\\n";
    }
    out += "        '*:file:_files'\n      ;;\n";
  }
  return out + "  esac\n}\n_h3 \"$@\"\n";
}

std::string fish_text(std::span<const Command> commands) {
  std::string out = "# Completion of h3 for fish: h3 completions fish > ~/.config/fish/completions/h3.fish\n";
  std::set<std::string> listed;
  for (const Command& command : commands) {
    const std::string word = words_of(command.name, " ")[0];
    if (!listed.insert(word).second) continue;
    out += "complete -c h3 -n __fish_use_subcommand -f -a " + word + " -d '" + quoted(command.summary, "") + "'\n";
  }
  for (const Flag& flag : flag_table()) {
    std::string words;
    for (const std::string& word : first_words(commands)) {
      if ((flag.commands & bits_of(commands, word)) != 0) words += " " + word;
    }
    out += "complete -c h3 -n '__fish_seen_subcommand_from" + words + "' -l " + flag.name;
    if (flag.kind != ValueKind::none) out += flag.kind == ValueKind::path ? " -r -F" : " -r -f";
    const std::vector<std::string> choices = choices_of(flag);
    if (!choices.empty()) out += " -a '" + joined(choices, " ") + "'";
    out += " -d '" + quoted(flag.help, "") + "'\n";
  }
  return out;
}

// Text of a troff paragraph: hyphens stay hyphens, a leading dot or quote is no request.
std::string troff(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool line_start = i == 0 || text[i - 1] == '\n';
    if (line_start && (c == '.' || c == '\'')) out += "\\&";
    if (c == '-') {
      out += "\\-";
    } else if (c == '\\') {
      out += "\\e";
    } else {
      out += c;
    }
  }
  return out;
}

std::string troff_flag(const Flag& flag) {
  std::string names = "\\fB" + troff(spelled(flag)) + "\\fR";
  for (const std::string& alias : alias_list(flag)) names += ", \\fB" + troff(alias) + "\\fR";
  if (*flag.value != '\0') names += " \\fI" + troff(flag.value) + "\\fR";
  std::string facts;
  if (*flag.allowed != '\0') facts += " Allowed: " + std::string(flag.allowed) + ".";
  if (*flag.fallback != '\0') facts += " Default: " + std::string(flag.fallback) + ".";
  if (flag.repeats) facts += " Repeatable.";
  return ".TP\n" + names + "\n" + troff(flag.help + facts) + "\n";
}

}  // namespace

std::string completions_text(std::span<const Command> commands, const std::string& shell) {
  if (shell == "bash") return bash_text(commands);
  if (shell == "zsh") return zsh_text(commands);
  if (shell == "fish") return fish_text(commands);
  fail(Code::usage, "completions: \"%s\" is not known, give bash, zsh or fish: h3 completions bash", shell.c_str());
}

std::string manual_text(std::span<const Command> commands) {
  std::string out = std::string(".TH H3 1 \"\" \"h3 ") + engine_version() +
                    "\" \"User Commands\"\n.SH NAME\nh3 \\- video with sound from a prompt, with MiniMax\\-H3\n"
                    ".SH SYNOPSIS\n.B h3\n.I COMMAND\n[\\fIflags\\fR]\n.SH DESCRIPTION\n"
                    "A flag is written \\fB\\-\\-name value\\fR or \\fB\\-\\-name=value\\fR. Every flag can also come "
                    "from the environment as \\fBH3_NAME\\fR and from a \\fB\\-\\-config\\fR file. The command line "
                    "wins over the environment, the environment over the file.\n.SH COMMANDS\n";
  for (const Command& command : commands) {
    out += ".SS \"h3 " + troff(command.name) + (*command.positional != '\0' ? " " + troff(command.positional) : "") +
           "\"\n" + troff(command.summary) + ".\n";
    if (*command.details != '\0') out += ".PP\n" + troff(command.details) + "\n";
    for (const Flag& flag : flag_table()) {
      if ((flag.commands & command.bit) != 0 && flag.commands != kEvery) out += troff_flag(flag);
    }
  }
  return out +
         ".SH EXIT STATUS\n.TP\n0\nDone.\n.TP\n1\nThe run failed.\n.TP\n2\nThe request was wrong.\n.TP\n130\n"
         "Stopped with Ctrl\\-C.\n";
}

}  // namespace h3
