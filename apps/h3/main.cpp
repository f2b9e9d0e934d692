// The program: every command it has.
#include <cstdio>

#include "apps/cli/command.h"
#include "apps/h3/serve.h"

namespace h3 {
int run_bench_eval(Arguments& arguments);
int run_bench_formats(Arguments& arguments);
int run_bench_models(Arguments& arguments);
int run_bench_attention(Arguments& arguments);
int run_bench_start(Arguments& arguments);
int run_bench_turbo(Arguments& arguments);
int run_pack(Arguments& arguments);
int run_verify(Arguments& arguments);
}  // namespace h3

namespace {

int run_completions(h3::Arguments& arguments);

constexpr h3::Command kCommands[] = {
    {"generate", "animate", h3::kGenerate, "[MODEL]...", "Render a clip from a prompt and keyframes",
     "With no MODEL the embedded demo model runs. With --first-frame or --last-frame the clip starts or ends with a\n"
     "picture.",
     h3::run_generate},
    // The flags of generate, so that one becomes the other by its first word.
    {"plan", "", h3::kGenerate | h3::kPlan, "[MODEL]...",
     "Say what a clip would need: memory, disk, time and kernels; run nothing",
     "Takes the flags of h3 generate. The exit code is 1 when the clip does not fit into --ram or the machine.",
     h3::run_plan},
    {"rerun", "", h3::kRerun, "CLIP", "Render a clip again from the settings inside it",
     "Writes CLIP-rerun beside it (or --output) and says whether the two files are identical.", h3::run_rerun},
    {"info", "", h3::kInfo, "[FILE]...", "Say what files are and what they still need",
     "Model files and folders are recognised by their tensors. A clip written by h3 shows its settings.", h3::run_info},
    {"verify", "", h3::kVerify, "FILE...", "Check every hash of CMF files, offsets and shapes of others",
     "Names each damaged tensor with its bytes. With --repair SOURCE the damaged ranges are copied from another copy.",
     h3::run_verify},
    {"pack", "animate-pack", h3::kPack, "INPUT...", "Make one verified CMF file of model files or of another CMF",
     "Of two inputs with the same role the later one counts, so that a part of a CMF can be replaced. Tensors that\n"
     "need no change are copied byte for byte. An --output that ends in .safetensors gets the transformer alone, by\n"
     "the names of ComfyUI's files.",
     h3::run_pack},
    {"prepare", "", h3::kPrepare, "[MODEL]...", "Find plans of matmuls and attention for this card, for later starts",
     "Tries the library's candidates on the shapes of a block and keeps one only where it is clearly faster. The file\n"
     "holds for this card, driver, libraries and program, and for every block of the model; lengths that it was not "
     "made\n"
     "for are planned as without it:\n"
     "h3 generate MODEL --prepared plans.h3p",
     h3::run_prepare},
    {"serve", "", h3::kServe, "[MODEL]...", "Answer HTTP requests and show a page, with the model kept ready",
     "The page is at http://127.0.0.1:8317/, the API is described in docs/http.md. With no MODEL the embedded demo\n"
     "model runs.",
     h3::run_serve},
    {"bench eval", "", h3::kBenchEval, "[MODEL]...", "Score how well the demo model follows its prompts",
     "Renders the prompts of eval.json and applies its rules to picture and sound. 1 means that every rule holds.",
     h3::run_bench_eval},
    {"bench formats", "", h3::kBenchFormats, "[MODEL]...", "Measure what every storage format costs and loses",
     "Encodes normally distributed weights and the transformer in each format and prints docs/formats.md up to its\n"
     "measured scores. The model should be one of full precision; with none the embedded demo is measured.",
     h3::run_bench_formats},
    {"bench start", "", h3::kBenchStart, "[MODEL]...", "Time a start, from nothing to the end of the first evaluation",
     "Prints the seconds of every stage since the process began. The files should be in the page cache: cat FILE\n"
     "> /dev/null.",
     h3::run_bench_start},
    {"bench attention", "", h3::kBenchAttention, "",
     "Time the kernels of attention beside each other, with their errors",
     "56 heads of 128 in bf16 at the sequence lengths of the release. One JSON object a line.",
     h3::run_bench_attention},
    {"bench turbo", "", h3::kBenchTurbo, "", "Time live adapters, reused evaluations and sparse attention",
     "Blocks of release size with made-up weights, each beside the same work without it. One JSON object a line.",
     h3::run_bench_turbo},
    {"bench", "", h3::kBench, "ops|block|step|vae|decode|audio|e2e",
     "Measure operations, a block, an evaluation, the decoders or a whole clip",
     "Weights of release size are made by hash. Every result is checked before its time is printed: on the host "
     "beside\n"
     "the peak of the matrix unit and oneDNN. With --json one object a line.",
     h3::run_bench_models},
    {"compare", "", h3::kCompare, "A B", "Say how far two results lie apart",
     "Two clips: PSNR, SSIM and the signal-to-noise ratio of the sound. Two .safetensors files of --dump, or two "
     "folders\n"
     "of them: relative L2, cosine (of embeddings row by row), and the first step that differs.",
     h3::run_compare},
    {"completions", "", h3::kCompletions, "bash|zsh|fish", "Print completions for a shell",
     "For example: h3 completions bash > /etc/bash_completion.d/h3", run_completions},
    {"devices", "", h3::kDevices, "", "List what can compute here, and why something cannot", "", h3::run_devices},
};

int run_completions(h3::Arguments& arguments) {
  const std::string shell = arguments.positional.size() == 1 ? arguments.positional[0] : "";
  std::fputs(h3::completions_text(kCommands, shell).c_str(), stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return h3::run_cli(argc, argv, kCommands); }
