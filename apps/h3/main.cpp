// The program: every command it has.
#include "apps/cli/command.h"

namespace {

constexpr h3::Command kCommands[] = {
    {"info", "", h3::kInfo, "[FILE]...", "Say what files are and what they still need",
     "Model files and folders are recognised by their tensors. A clip written by h3 shows its settings.", h3::run_info},
    {"devices", "", h3::kDevices, "", "List what can compute here, and why something cannot", "", h3::run_devices},
};

}  // namespace

int main(int argc, char** argv) { return h3::run_cli(argc, argv, kCommands); }
