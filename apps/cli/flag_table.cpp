// One row per flag.
#include "apps/cli/flags.h"

namespace h3 {
namespace {

constexpr uint32_t kRender = kGenerate | kRerun;
constexpr uint32_t kRun = kGenerate | kRerun | kBenchEval;
constexpr uint32_t kModels = kRun | kInfo;
using K = ValueKind;

// clang-format off
constexpr Flag kFlags[] = {
    // section, name, aliases, kind, value, default, allowed, request field, group, repeats, commands, help
    {"Model", "model", "-m --diffusion-model --vae --audio-vae --llm --llm_vision", K::path, "PATH",
     "the embedded demo model", "", "", "", true, kModels,
     "A checkpoint file or folder; give as many as the model has. What each one is, is read from its tensors."},
    {"Model", "tokenizer", "", K::path, "PATH", "inside or beside the model files", "", "", "", false, kModels,
     "Folder with tokenizer.json, or with vocab.json and merges.txt."},
    {"Model", "te-layers", "", K::whole, "N", "50 for the release, else from the config", "1..64", "", "", false, kRun,
     "Which hidden state of the text encoder the transformer reads."},
    {"Model", "partition", "", K::choice, "NAME", "as the files declare", "fl2va, ref2va", "", "", false, kModels,
     "Which half of the release the transformer is, where the files do not say."},
    {"Model", "qkv-order", "", K::choice, "ORDER", "as the files declare", "contiguous, interleaved", "", "", false,
     kModels, "Row order of fused QKV weights, where the files do not say."},

    {"Model", "weights", "", K::choice, "random", "the files'", "random", "", "", false, kGenerate,
     "Made-up weights of release size instead of files: to measure time and memory. The clip shows nothing."},
    {"Model", "layers", "", K::whole, "N", "2", "1..50", "", "", false, kGenerate,
     "Layers of each part with --weights random."},

    {"What to render", "prompt", "-p", K::text, "TEXT", "", "", "prompt", "prompt", false, kGenerate,
     "What the clip shows and how it sounds."},
    {"What to render", "prompt-file", "", K::path, "FILE", "", "", "", "prompt", false, kGenerate,
     "Read the prompt from a UTF-8 text file; one line break at its end is dropped."},
    {"What to render", "prompt-embeds", "", K::path, "FILE", "", "", "prompt_embeds", "", false, kGenerate,
     "Use embeddings saved with --dump text=FILE instead of encoding a prompt; no text encoder is needed."},
    {"What to render", "first-frame", "-i --init-img --image", K::path, "FILE", "", "", "first_frame", "", false,
     kGenerate, "The clip starts with this picture (PNG, JPEG, WebP, PPM)."},
    {"What to render", "last-frame", "--end-img", K::path, "FILE", "", "", "last_frame", "", false, kGenerate,
     "The clip ends with this picture."},
    {"What to render", "fit", "", K::choice, "HOW", "first stretch, last cover", "stretch, cover, contain", "fit", "",
     false, kGenerate, "How keyframes are brought to the size of the clip."},

    {"Size and length", "size", "", K::size, "WxH", "the model's", "", "", "size", false, kGenerate,
     "Width and height in pixels, snapped to multiples of 32."},
    {"Size and length", "width", "-W", K::whole, "N", "the model's", "32..4096", "width", "size", false, kGenerate,
     "Width in pixels."},
    {"Size and length", "height", "-H", K::whole, "N", "the model's", "32..4096", "height", "size", false, kGenerate,
     "Height in pixels."},
    {"Size and length", "aspect", "", K::text, "W:H", "", "1:4..4:1", "aspect", "size", false, kGenerate,
     "Shape of the picture; the size follows from the short edge."},
    {"Size and length", "short-edge", "", K::whole, "N", "the model's", "32..4096", "short_edge", "size", false,
     kGenerate, "Length of the shorter side, with --aspect or a keyframe."},
    {"Size and length", "frames", "--video-frames", K::whole, "N", "the model's", "1..1450", "frames", "length", false,
     kGenerate, "Frames at 24 per second, snapped up to 17k+5: 5, 22, 39, 56, ... 124 ..."},
    {"Size and length", "seconds", "--duration --video-duration", K::number, "S", "", "up to 60.4", "seconds",
     "length", false, kGenerate, "Length in seconds instead of frames."},
    {"Size and length", "exact", "", K::none, "", "off", "", "exact", "", false, kGenerate,
     "Cut picture and sound to the frames asked for instead of keeping the snapped length."},

    {"Sampling", "steps", "", K::whole, "N", "the model's", "1..1000", "steps", "steps", false,
     kGenerate | kBenchEval, "Model evaluations."},
    {"Sampling", "grid-points", "", K::whole, "N", "", "2..1001", "", "steps", false, kGenerate | kBenchEval,
     "The same as other programs count it: evaluations + 1."},
    {"Sampling", "seed", "-s", K::seed, "N", "42", "0..2^64-1, or -1 to draw one", "seed", "", false, kGenerate,
     "Seed of the noise. The same seed, model and device give the same file."},
    {"Sampling", "shift", "--flow-shift", K::shift, "V[/A]", "12/3", "above 0, up to 100", "", "", false, kGenerate,
     "Timestep shift of the video, and of the audio after a slash."},
    {"Sampling", "profile", "", K::choice, "NAME", "diffusers", "diffusers", "profile", "", false, kGenerate,
     "Whose noise order, keyframe rule and schedule to follow."},
    {"Sampling", "scheduler", "", K::choice, "NAME", "the profile's", "", "scheduler", "", false, kGenerate,
     "Where the evaluations lie between noise and clip."},
    {"Sampling", "sampler", "--sampling-method", K::choice, "NAME", "the profile's", "", "sampler", "", false,
     kGenerate, "How one evaluation moves the clip on."},
    {"Sampling", "stock-sampler", "", K::none, "", "off", "", "stock_sampler", "", false, kGenerate,
     "Step the sound on the video's clock, as single-clock samplers do. Wrong at few steps; for comparison."},

    {"Computing", "device", "", K::text, "NAME", "auto", "auto, ref, cpu, cuda:N", "", "", false, kRun,
     "Back end to compute with; see h3 devices."},
    {"Computing", "precision", "", K::choice, "TYPE", "f32, bf16 for models of release size", "f32, bf16", "precision",
     "", false, kGenerate | kBenchEval, "Arithmetic of the transformer and the text encoder."},
    {"Computing", "vae-precision", "", K::choice, "TYPE", "f32", "f32, bf16, f16", "vae_precision", "", false,
     kGenerate | kBenchEval, "Arithmetic of the video decoder and encoder."},
    {"Computing", "threads", "-t", K::whole, "N", "one per CPU", "1..1024", "", "", false, kRun,
     "Threads to compute with. Results do not depend on it."},

    {"Computing", "shadow", "", K::none, "", "off", "", "", "", false, kRender,
     "Repeat every operation on the reference back end and stop at the first that differs. Slow; for small runs."},

    {"Output", "output", "-o --out", K::path, "FILE", "h3.mp4", "", "output", "", false, kRender,
     "The clip; the container follows from the ending: .mp4, .avi, .y4m."},
    {"Output", "wav", "", K::path, "FILE", "", "", "wav", "", false, kGenerate, "Also write the sound alone."},
    {"Output", "frames-dir", "", K::path, "DIR", "", "", "frames_dir", "", false, kGenerate,
     "Also write every frame as a picture into this folder."},
    {"Output", "quality", "", K::whole, "N", "18", "0..51", "quality", "", false, kGenerate,
     "Rate factor of the video encoder: 0 is lossless, 51 the smallest file."},
    {"Output", "no-audio", "", K::none, "", "off", "", "", "", false, kGenerate, "Write the picture without sound."},
    {"Output", "report", "", K::path, "FILE", "", "", "", "", false, kRender,
     "Write what was done as JSON: resolved request, models, times, memory, warnings, verdicts."},
    {"Output", "dump", "", K::dump, "STAGE=FILE", "",
     "text, keyframes, noise, latents, velocity, final, frames, audio", "", "", true, kRender,
     "Write the result of a stage as safetensors."},
    {"Output", "json", "", K::none, "", "off", "", "", "", false, kInfo | kDevices | kBenchEval,
     "Print JSON instead of text."},

    {"Evaluation", "eval", "", K::path, "FILE", "eval.json of the embedded demo model", "", "", "", false, kBenchEval,
     "Prompts, expectations and scores to compare with."},
    {"Evaluation", "seeds", "", K::text, "LIST", "as the file says", "", "", "", false, kBenchEval,
     "Comma-separated seeds to render each prompt with."},
    {"Evaluation", "prompts", "", K::text, "LIST", "all", "", "", "", false, kBenchEval,
     "Comma-separated indices of the prompts to render."},

    {"Other programs' flags", "mode", "-M", K::choice, "NAME", "vid_gen", "vid_gen", "", "", false, kGenerate,
     "Accepted for command lines of stable-diffusion.cpp."},
    {"Other programs' flags", "cfg-scale", "", K::number, "X", "1", "1", "", "", false, kGenerate,
     "Accepted as 1 only: the model is distilled and takes no guidance."},
    {"Other programs' flags", "negative-prompt", "-n", K::text, "TEXT", "", "empty", "", "", false, kGenerate,
     "Accepted empty only, for the same reason."},
    {"Other programs' flags", "fps", "", K::whole, "N", "24", "24", "", "", false, kGenerate,
     "Accepted as 24 only: the model has no other rate."},

    {"General", "config", "", K::path, "FILE", "", "", "", "", false, kRun,
     "Read flags from a file of name = value lines (TOML). The environment and the command line win over it."},
    {"General", "log-level", "", K::choice, "LEVEL", "warn", "error, warn, info, debug", "", "verbosity", false, kRun,
     "How much to say; info adds the time of every stage."},
    {"General", "verbose", "-v", K::none, "", "off", "", "", "verbosity", false, kRun, "The same as --log-level info."},
    {"General", "markdown", "", K::none, "", "off", "", "", "", false, kHelp, "Print docs/cli.md."},
    {"General", "help", "-h", K::none, "", "", "", "", "", false, kEvery, "Print this text."},
};
// clang-format on

}  // namespace

std::span<const Flag> flag_table() { return kFlags; }

}  // namespace h3
