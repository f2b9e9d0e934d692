// What lies in the files that a run writes, and where its settings come from.
#include <cstdio>
#include <cstdlib>

#include "base/json.h"
#include "media/media.h"
#include "tests/cli/program.h"

namespace h3 {
namespace {

class Outputs : public ProgramTest {
 protected:
  void good(const std::vector<std::string>& arguments, const RunOptions& options = {}) const {
    const Outcome outcome = run(arguments, options);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
  }
  // What FFmpeg's own prober says of every stream: "vp9,32,...".
  std::string probed(const std::string& file, const std::string& entries) const {
    const std::string line = "ffprobe -v error -show_entries stream=" + entries + " -of csv=p=0 " + path(file);
    std::string text;
    FILE* const pipe = ::popen(line.c_str(), "r");
    if (pipe == nullptr) return text;
    char buffer[1024];
    for (size_t count; (count = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) text.append(buffer, count);
    ::pclose(pipe);
    return text;
  }
};

TEST_F(Outputs, WebmIsVp9AndOpusToFfmpeg) {
  if (clip_extensions().find(".webm") == std::string::npos) GTEST_SKIP() << "built without FFmpeg";
  if (std::system("command -v ffprobe >/dev/null 2>&1") != 0) GTEST_SKIP() << "ffprobe is not installed";
  good(quick({"--frames", "22", "-o", "clip.webm"}));
  EXPECT_EQ(probed("clip.webm", "codec_name,width,height,r_frame_rate,sample_rate,channels"),
            "vp9,64,64,24/1\nopus,48000,2,0/0\n");
  // Every frame decodes, and none is missing.
  EXPECT_EQ(read_clip(path("clip.webm")).frames.size(), 22u);
  const Outcome again = run({"rerun", "clip.webm"});
  EXPECT_NE(again.out.find("are identical"), std::string::npos) << again.out << again.err;
}

TEST_F(Outputs, ExactCutsPictureAndSound) {
  good(quick({"--frames", "7", "--exact", "-o", "cut.y4m"}));
  good(quick({"--frames", "7", "-o", "whole.y4m"}));
  const ClipData cut = read_clip(path("cut.y4m")), whole = read_clip(path("whole.y4m"));
  ASSERT_EQ(cut.frames.size(), 7u);
  ASSERT_EQ(whole.frames.size(), 22u);
  for (size_t i = 0; i < cut.frames.size(); ++i) EXPECT_TRUE(cut.frames[i] == whole.frames[i]) << i;
  // 16-bit stereo behind a header of 44 bytes: 7 frames of 24 a second at 32 kHz, and all 800 of 37 latents.
  EXPECT_EQ(read("cut.wav").size(), 44u + 4 * (7 * 32000 / 24));
  EXPECT_EQ(read("whole.wav").size(), 44u + 4 * 800 * 37);
  EXPECT_TRUE(read("whole.wav").compare(44, 4000, read("cut.wav"), 44, 4000) == 0);
}

TEST_F(Outputs, CommandLineBeatsEnvironmentBeatsConfig) {
  write("h3.toml", "# settings\nsteps = 4\nseed = 4\nframes = 22\nsize = \"64x64\"\n");
  good({"generate", "-p", "x", "--config", "h3.toml", "--steps", "1", "-o", "a.y4m", "--report", "r.json"},
       {.environment = {"H3_STEPS=3", "H3_SEED=3", "H3_NO_AUDIO=true"}});
  const Json report = Json::parse(read("r.json"), "r.json");
  const Json& request = report.at("recipe").at("request");
  EXPECT_EQ(request.at("steps").as_int(), 1);
  EXPECT_EQ(request.at("seed").as_int(), 3);
  EXPECT_EQ(request.at("frames").as_int(), 22);
  EXPECT_EQ(report.at("resolved").at("frames").at("from").as_string(), "config h3.toml");
  EXPECT_FALSE(std::filesystem::exists(path("a.wav")));
}

TEST_F(Outputs, ConfigErrorsNameFileAndLine) {
  const std::vector<std::string> command = quick({"--config", "h3.toml"});
  write("h3.toml", "seed = 1\n\nstpes = 4\n");
  expect_refused(command, 2, {"h3.toml:3", "unknown key stpes", "steps"});
  write("h3.toml", "seed = 1\nsteps = \"many\"\n");
  expect_refused(command, 2, {"h3.toml", "--steps", "\"many\""});
  write("h3.toml", "[table]\n");
  expect_refused(command, 2, {"h3.toml:1", "tables"});
  expect_refused(quick({"--config", "none.toml"}), 1, {"none.toml"});
  expect_refused(quick(), 2, {"H3_FRAMES", "\"few\""}, {.environment = {"H3_FRAMES=few"}});
}

}  // namespace
}  // namespace h3
