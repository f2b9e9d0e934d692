// The program: every command it has.
#include "apps/cli/command.h"
#include "apps/h3/serve.h"

namespace h3 {
int run_bench_eval(Arguments& arguments);
int run_bench_formats(Arguments& arguments);
}  // namespace h3

namespace {

constexpr h3::Command kCommands[] = {
    {"generate", "animate", h3::kGenerate, "[MODEL]...", "Render a clip from a prompt and keyframes",
     "With no MODEL the embedded demo model runs. With --first-frame or --last-frame the clip starts or ends with a\n"
     "picture.",
     h3::run_generate},
    {"rerun", "", h3::kRerun, "CLIP", "Render a clip again from the settings inside it",
     "Writes CLIP-rerun beside it (or --output) and says whether the two files are identical.", h3::run_rerun},
    {"info", "", h3::kInfo, "[FILE]...", "Say what files are and what they still need",
     "Model files and folders are recognised by their tensors. A clip written by h3 shows its settings.", h3::run_info},
    {"serve", "", h3::kServe, "[MODEL]...", "Answer HTTP requests and show a page, with the model kept ready",
     "The page is at http://127.0.0.1:8317/, the API is described in docs/http.md. With no MODEL the embedded demo\n"
     "model runs.",
     h3::run_serve},
    {"bench eval", "", h3::kBenchEval, "[MODEL]...", "Score how well the demo model follows its prompts",
     "Renders the prompts of eval.json and applies its rules to picture and sound. 1 means that every rule holds.",
     h3::run_bench_eval},
    {"bench formats", "", h3::kBenchFormats, "", "Measure what every storage format costs and loses",
     "Encodes normally distributed weights and the embedded demo transformer in each format and prints docs/formats.md "
     "up\n"
     "to its measured scores.",
     h3::run_bench_formats},
    {"devices", "", h3::kDevices, "", "List what can compute here, and why something cannot", "", h3::run_devices},
};

}  // namespace

int main(int argc, char** argv) { return h3::run_cli(argc, argv, kCommands); }
