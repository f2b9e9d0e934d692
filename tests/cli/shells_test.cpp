// What shells and man make of the text printed for them: they are asked, where they are installed.
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "apps/cli/flags.h"
#include "tests/cli/program.h"

namespace h3 {
namespace {

class Shells : public ProgramTest {
 protected:
  static bool installed(const std::string& program) {
    return std::system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0;
  }
  // Standard output and error of a command line in the folder of the test.
  Outcome shell(const std::string& line) const {
    Outcome outcome;
    FILE* const pipe = ::popen(("cd " + folder_.string() + " && { " + line + "\n} 2>&1").c_str(), "r");
    if (pipe == nullptr) return outcome;
    char buffer[4096];
    for (size_t count; (count = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) outcome.out.append(buffer, count);
    const int status = ::pclose(pipe);
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    return outcome;
  }
  void put(const std::string& file, const std::vector<std::string>& arguments) const {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    write(file, outcome.out);
  }
  // The shell's own check of syntax accepts the file and refuses one with a quote too many.
  void expect_syntax(const std::string& shell_name, const std::string& file) const {
    const Outcome good = shell(shell_name + " -n " + file);
    EXPECT_EQ(good.code, 0) << good.out;
    EXPECT_EQ(good.out, "");
    write("planted", read(file) + "\"\n");
    EXPECT_NE(shell(shell_name + " -n planted").code, 0) << shell_name << " accepts anything";
  }
};

// What the table allows for a flag, sorted.
std::vector<std::string> allowed(const std::string& name) {
  std::vector<std::string> words;
  for (const Flag& flag : flag_table()) {
    if (name != flag.name) continue;
    std::string text = flag.allowed;
    std::replace(text.begin(), text.end(), ',', ' ');
    std::istringstream in(text);
    for (std::string word; in >> word;) words.push_back(word);
  }
  std::sort(words.begin(), words.end());
  return words;
}

// Lines of a text, sorted, up to a tab.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line.substr(0, line.find('\t')));
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST_F(Shells, BashCompletes) {
  if (!installed("bash")) GTEST_SKIP() << "bash is not installed";
  put("h3.bash", {"completions", "bash"});
  expect_syntax("bash", "h3.bash");
  const auto completed = [&](const std::string& words) {
    write("ask.sh", "source ./h3.bash\nCOMP_WORDS=(h3 " + words +
                        ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_h3\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n");
    return lines_of(shell("bash --norc ask.sh").out);
  };
  EXPECT_EQ(completed("generate --pre"),
            (std::vector<std::string>{"--precision", "--prepared", "--preset", "--preview"}));
  EXPECT_EQ(completed("generate --precision ''"), allowed("precision"));
  EXPECT_EQ(completed("comp"), (std::vector<std::string>{"compare", "completions"}));
  EXPECT_EQ(completed("serve --media"), (std::vector<std::string>{"--media-root"}));
  EXPECT_EQ(completed("generate --media"), (std::vector<std::string>{""})) << "a flag of another command";
}

TEST_F(Shells, ZshReadsItsFile) {
  if (!installed("zsh")) GTEST_SKIP() << "zsh is not installed";
  put("_h3", {"completions", "zsh"});
  expect_syntax("zsh -f", "_h3");
  // Its helpers are stubs that print what they are given: the file runs, and names the flags of the command.
  write("ask.zsh",
        "_describe() { print -l -- ${(P)2} }\n_arguments() { print -l -- $@ }\n"
        "words=(h3 $=ASK); CURRENT=${#words}\nsource ./_h3\n");
  const Outcome commands = shell("ASK=gen zsh -f ask.zsh");
  EXPECT_EQ(commands.code, 0) << commands.out;
  EXPECT_NE(commands.out.find("generate:Render a clip"), std::string::npos) << commands.out;
  const Outcome flags = shell("ASK='generate --pre' zsh -f ask.zsh");
  EXPECT_NE(flags.out.find("--precision["), std::string::npos) << flags.out;
  EXPECT_NE(flags.out.find("(f32 bf16 "), std::string::npos) << flags.out;
  EXPECT_EQ(flags.out.find("--media-root["), std::string::npos) << "a flag of another command";
}

TEST_F(Shells, FishCompletes) {
  if (!installed("fish")) GTEST_SKIP() << "fish is not installed";
  put("h3.fish", {"completions", "fish"});
  expect_syntax("fish", "h3.fish");
  const auto completed = [&](const std::string& line) {
    return lines_of(shell("HOME=$PWD fish --no-config -c 'source h3.fish; complete -C \"" + line + "\"'").out);
  };
  EXPECT_EQ(completed("h3 generate --pre"),
            (std::vector<std::string>{"--precision", "--prepared", "--preset", "--preview"}));
  EXPECT_EQ(completed("h3 generate --precision "), allowed("precision"));
  EXPECT_EQ(completed("h3 comp"), (std::vector<std::string>{"compare", "completions"}));
}

TEST_F(Shells, UnknownShellsAreRefused) { expect_refused({"completions", "csh"}, 2, {"csh", "bash, zsh or fish"}); }

// Every flag stands on the page, and the formatter has nothing to say against it.
TEST_F(Shells, ManualPageIsClean) {
  if (!installed("groff")) GTEST_SKIP() << "groff is not installed";
  put("h3.1", {"help", "--man"});
  const Outcome page = shell("groff -man -Tascii -ww -P-c h3.1 | sed 's/.\\x08//g'");
  EXPECT_EQ(page.out.find("troff:"), std::string::npos) << page.out.substr(0, 2000);
  for (const char* text : {"NAME", "SYNOPSIS", "COMMANDS", "EXIT STATUS", "h3 bench eval", "H3_NAME"}) {
    EXPECT_NE(page.out.find(text), std::string::npos) << text;
  }
  for (const Flag& flag : flag_table()) {
    if (flag.commands == kHelp || flag.commands == kEvery) continue;
    EXPECT_NE(page.out.find(spelled(flag)), std::string::npos) << flag.name;
  }
  write("planted.1", ".TH H3 1\n.SH NAME\nh3 \\- x\n.nosuchmacro\n");
  EXPECT_NE(shell("groff -man -Tascii -ww planted.1").out.find("troff:"), std::string::npos);
}

}  // namespace
}  // namespace h3
