// The commands as users meet them.
#include <cstdlib>
#include <map>

#include "base/json.h"
#include "media/media.h"
#include "store/tensor_source.h"
#include "tests/cli/program.h"
#include "tests/support/official_folder.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

class Commands : public ProgramTest {
 protected:
  Outcome good(const std::vector<std::string>& arguments, const RunOptions& options = {}) const {
    Outcome outcome = run(arguments, options);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome;
  }
  std::vector<float> tensor(const std::string& file, const std::string& name) const {
    const std::unique_ptr<TensorSource> source = open_safetensors(path(file));
    const TensorInfo* const info = source->find(name);
    EXPECT_NE(info, nullptr) << file << " has no " << name;
    if (info == nullptr) return {};
    const float* const first = reinterpret_cast<const float*>(info->data.data());
    return {first, first + info->data.size() / sizeof(float)};
  }
};

TEST_F(Commands, HelpAndVersion) {
  EXPECT_NE(good({"--help"}).out.find("generate"), std::string::npos);
  EXPECT_EQ(good({"--version"}).out.rfind("h3 ", 0), 0u);
  const std::string help = good({"generate", "--help"}).out;
  EXPECT_EQ(help, good({"help", "generate"}).out);
  for (const char* text : {"--first-frame", "--init-img", "--steps", "default: the model's", "17k+5"}) {
    EXPECT_NE(help.find(text), std::string::npos) << text;
  }
  for (const char* command : {"rerun", "info", "devices"}) EXPECT_EQ(good({command, "-h"}).code, 0);
}

TEST_F(Commands, DocumentationIsTheTable) {
  std::ifstream in(std::string(H3_SOURCE_DIR) + "/docs/cli.md");
  const std::string page((std::istreambuf_iterator<char>(in)), {});
  EXPECT_EQ(good({"help", "--markdown"}).out, page) << "run: h3 help --markdown > docs/cli.md";
}

TEST_F(Commands, DevicesAndInfo) {
  EXPECT_NE(good({"devices"}).out.find("cpu"), std::string::npos);
  EXPECT_TRUE(Json::parse(good({"devices", "--json"}).out, "devices").is_array());
  EXPECT_NE(good({"info"}).out.find("t2va"), std::string::npos);
  EXPECT_TRUE(Json::parse(good({"info", "--json"}).out, "info").is_object());
}

TEST_F(Commands, TheSameCommandTwiceGivesTheSameBytes) {
  good(quick({"-o", "a.y4m"}));
  good(quick({"-o", "b.y4m"}));
  EXPECT_FALSE(read("a.y4m").empty());
  EXPECT_TRUE(read("a.y4m") == read("b.y4m"));
  EXPECT_TRUE(read("a.wav") == read("b.wav"));
  good(quick({"-o", "c.y4m", "--seed", "43"}));
  EXPECT_FALSE(read("a.y4m") == read("c.y4m"));
}

TEST_F(Commands, PreviewShowsTheClipAndDoesNotChangeIt) {
  good(quick({"-o", "a.y4m"}));
  good(quick({"-o", "b.y4m", "--preview", "p.png"}), {.environment = {"H3_CACHE_DIR=" + path("cache")}});
  EXPECT_TRUE(read("a.y4m") == read("b.y4m"));
  const Image picture = read_image(path("p.png"));
  EXPECT_GT(picture.width, 0);
  // The colour map of the model; beside it lie the rates of the host.
  EXPECT_EQ(std::distance(fs::directory_iterator(path("cache")), {}), 2);
  expect_refused(quick({"-o", "c.y4m", "--preview", "none/p.png"}), 1, {"none/p.png"});
}

TEST_F(Commands, ThreadsDoNotChangeTheLatents) {
  for (const char* precision : {"f32", "bf16"}) {
    std::map<std::string, std::vector<float>> video, audio;
    for (const char* threads : {"1", "2", "3"}) {
      const std::string file = std::string(precision) + threads + ".st";
      good(quick({"--precision", precision, "--threads", threads, "--dump", "final=" + file, "--steps", "2"}));
      video[threads] = tensor(file, "latents");
      audio[threads] = tensor(file, "audio_latents");
    }
    EXPECT_FALSE(video["1"].empty());
    EXPECT_TRUE(video["1"] == video["2"]) << precision;
    EXPECT_TRUE(video["1"] == video["3"]) << precision;
    EXPECT_TRUE(audio["1"] == audio["2"]) << precision;
    EXPECT_TRUE(audio["1"] == audio["3"]) << precision;
  }
}

TEST_F(Commands, Mp4PlaysAndRerunsIdentically) {
  if (clip_extensions().find(".mp4") == std::string::npos) GTEST_SKIP() << "built without FFmpeg";
  good(quick({"-o", "clip.mp4", "--frames", "22"}));
  EXPECT_EQ(files(), std::vector<std::string>{"clip.mp4"});
  const ClipData clip = read_clip(path("clip.mp4"));
  EXPECT_EQ(clip.frames.size(), 22u);
  EXPECT_EQ(clip.fps, 24);
  EXPECT_EQ(clip.sample_rate, 32000);
  EXPECT_EQ(clip.channels, 2);
  const Outcome again = good({"rerun", "clip.mp4"});
  EXPECT_NE(again.out.find("are identical"), std::string::npos) << again.out;
  EXPECT_TRUE(read("clip.mp4") == read("clip-rerun.mp4"));
  EXPECT_NE(good({"info", "clip.mp4"}).out.find("A red circle moves right"), std::string::npos);
}

TEST_F(Commands, RerunRepeatsAFullRequest) {
  write("first.ppm", "P6\n4 4\n255\n" + std::string(48, '\x60'));
  good({"generate", "-p",      "A red circle.", "--seed", "-1",          "--steps",       "2",
        "--size",   "64x96",   "--frames",      "7",      "--exact",     "--first-frame", "first.ppm",
        "--fit",    "contain", "--profile",     "comfy",  "--precision", "bf16",          "--shift",
        "6/2",      "-o",      "a.y4m"});
  EXPECT_NE(good({"rerun", "a.y4m", "-o", "b.y4m"}).out.find("identical"), std::string::npos);
  EXPECT_TRUE(read("a.wav") == read("b.wav"));
  write("first.ppm", "P6\n4 4\n255\n" + std::string(48, '\x61'));
  expect_refused({"rerun", "a.y4m", "-o", "c.y4m"}, 1, {"first_frame", "first.ppm", "not the file"});
  expect_refused({"rerun", "a.y4m", "-o", "a.y4m"}, 2, {"a.y4m", "the clip itself"});
}

TEST_F(Commands, SavedEmbeddingsStandForThePrompt) {
  good(quick({"-o", "a.y4m", "--dump", "text=text.st"}));
  good({"generate", "--prompt-embeds", "text.st", "--steps", "1", "--size", "64x64", "--frames", "5", "-o", "b.y4m"});
  EXPECT_TRUE(read("a.wav") == read("b.wav"));
  EXPECT_TRUE(read("a.y4m") == read("b.y4m"));
}

TEST_F(Commands, EveryStageCanBeDumped) {
  write("first.ppm", "P6\n4 4\n255\n" + std::string(48, '\x60'));
  std::vector<std::string> arguments = quick({"--first-frame", "first.ppm", "--steps", "3"});
  const std::map<std::string, std::vector<std::string>> stages = {
      {"text", {"prompt_embeds", "text_token_tags", "token_ids"}},
      {"keyframes", {"keyframe_u8.0", "condition_latent.0"}},
      {"noise", {"noise_condition.0", "noise_video", "noise_audio_rows", "condition_rows"}},
      {"latents", {"video_rows_after_step.0", "audio_rows_after_step.2"}},
      {"velocity", {"video_velocity.0", "audio_velocity.2"}},
      {"final", {"latents", "audio_latents"}},
      {"frames", {"frames"}},
      {"audio", {"audio"}}};
  for (const auto& [stage, tensors] : stages) {
    arguments.push_back("--dump");
    arguments.push_back(stage + "=" + stage + ".st");
  }
  good(arguments);
  for (const auto& [stage, tensors] : stages) {
    const std::unique_ptr<TensorSource> source = open_safetensors(path(stage + ".st"));
    for (const std::string& name : tensors) EXPECT_NE(source->find(name), nullptr) << stage << " " << name;
  }
  const std::unique_ptr<TensorSource> latents = open_safetensors(path("latents.st"));
  EXPECT_GT(std::atof(latents->metadata().at("video_rows_after_step.1.rms").c_str()), 0.1);
}

TEST_F(Commands, ReportSaysWhatWasDone) {
  good(quick({"--report", "r.json", "--fit", "cover"}), {.environment = {"H3_STEPS=2", "H3_SEED=9"}});
  const Json report = Json::parse(read("r.json"), "r.json");
  EXPECT_EQ(report.at("resolved").at("steps").at("from").as_string(), "given");
  EXPECT_EQ(report.at("resolved").at("seed").at("from").as_string(), "environment H3_SEED");
  EXPECT_EQ(report.at("recipe").at("request").at("steps").as_int(), 1);
  EXPECT_EQ(report.at("recipe").at("request").at("seed").as_int(), 9);
  EXPECT_EQ(report.at("recipe").at("model_ids").size(), 4u);
  EXPECT_EQ(report.at("evaluations").at("run").as_int(), 1);
  EXPECT_GT(report.at("peak_ram_bytes").as_int(), int64_t{1} << 24);
  EXPECT_GT(report.at("seconds").as_double(), 0);
  EXPECT_GE(report.at("watchdog").size(), 5u);
  EXPECT_EQ(report.at("files").at(0).as_string(), "clip.y4m");
  std::vector<std::string> stages;
  for (const Json& stage : report.at("stages").items()) stages.push_back(stage.at("stage").as_string());
  for (const char* stage : {"encode text", "denoise", "decode audio", "decode video"}) {
    EXPECT_NE(std::find(stages.begin(), stages.end(), stage), stages.end()) << stage;
  }
}

TEST_F(Commands, EnvironmentAndConfig) {
  write("h3.toml", "prompt = \"a blue star\"\nsteps = 1\nsize = \"64x64\"\nframes = 5\noutput = \"from_config.y4m\"\n");
  good({"generate", "--config", "h3.toml"});
  EXPECT_TRUE(fs::exists(folder_ / "from_config.y4m"));
  good({"generate", "--config", "h3.toml"}, {.environment = {"H3_OUTPUT=from_env.y4m"}});
  EXPECT_TRUE(fs::exists(folder_ / "from_env.y4m"));
  EXPECT_TRUE(read("from_env.y4m") == read("from_config.y4m"));
}

TEST_F(Commands, CtrlCStopsSoonAndLeavesNothing) {
  const Outcome outcome =
      run(quick({"--steps", "1000", "--size", "128x128", "--frames", "39", "-v"}), {.interrupt_at = "prepare"});
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_NE(outcome.err.find("h3: stopped on request"), std::string::npos) << outcome.err;
  EXPECT_TRUE(files().empty());
  EXPECT_LT(outcome.signal_seconds, 10);  // a block takes milliseconds; sanitizer builds and busy machines are slow
}

TEST_F(Commands, ForeignCommandLines) {
  good({"generate",    "-M",  "vid_gen",      "-p", "x",  "-W", "64", "-H", "64", "--video-frames", "5", "--steps", "1",
        "--cfg-scale", "1.0", "--flow-shift", "12", "-s", "7",  "-t", "2",  "-o", "sd.y4m"});
  good({"animate", "--prompt", "x", "--width", "64", "--height", "64", "--frames", "5", "--steps", "1", "--seed", "7",
        "--out", "cortiq.y4m"});
  EXPECT_TRUE(read("sd.wav") == read("cortiq.wav"));
}

TEST_F(Commands, EvaluationScoresAPrompt) {
  const Outcome outcome = good({"bench", "eval", "--prompts", "15", "--seeds", "1", "--steps", "4", "--json"});
  const Json json = Json::parse(outcome.out, "eval");
  EXPECT_EQ(json.at("overall").as_double(), 1);  // eval.json: every check of this prompt holds with 4 evaluations
  EXPECT_EQ(json.at("clips").at(0).at("checks").at("silent").as_double(), 1);
}

TEST_F(Commands, SpellingsOfACheckpointGiveTheSameLatents) {
  const char* const golden = std::getenv("H3_GOLDEN");
  if (golden == nullptr || !fs::exists(golden)) GTEST_SKIP() << "H3_GOLDEN is not set";
  const std::string toy = std::string(golden) + "/toy";
  assemble_official_folder(golden, path("official"));
  const std::map<std::string, std::vector<std::string>> spellings = {
      {"diffusers", {toy}},
      {"comfy",
       {std::string(golden) + "/toy_comfy/minimax_h3_toy.safetensors", std::string(golden) + "/toy_original/video_vae",
        toy + "/audio_vae", toy + "/text_encoder", "--tokenizer", toy + "/tokenizer"}},
      {"official", {"official"}}};
  const Json e2e = Json::parse(read_file(std::string(golden) + "/e2e.json"), "e2e.json");
  const std::string tap = std::to_string(e2e.at("text_encoder_layer").as_int());
  std::map<std::string, std::vector<float>> video, audio;
  for (const auto& [name, models] : spellings) {
    std::vector<std::string> arguments = quick({"--te-layers", tap, "--steps", "2", "--dump", "final=" + name + ".st"});
    arguments.insert(arguments.end(), models.begin(), models.end());
    good(arguments);
    video[name] = tensor(name + ".st", "latents");
    audio[name] = tensor(name + ".st", "audio_latents");
  }
  EXPECT_FALSE(video["diffusers"].empty());
  EXPECT_TRUE(video["diffusers"] == video["comfy"]);
  EXPECT_TRUE(video["diffusers"] == video["official"]);
  EXPECT_TRUE(audio["diffusers"] == audio["comfy"]);
  EXPECT_TRUE(audio["diffusers"] == audio["official"]);
}

}  // namespace
}  // namespace h3
