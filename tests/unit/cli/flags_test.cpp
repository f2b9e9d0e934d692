#include "apps/cli/flags.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>

#include "base/error.h"

namespace h3 {
namespace {

std::string refusal(const std::vector<std::string>& words, uint32_t bit = kGenerate) {
  try {
    const Arguments arguments = parse_arguments(words, bit);
    arguments.request();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::usage);
    return error.what();
  }
  return "(accepted)";
}

// Sets a variable for one test.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Environment() { ::unsetenv(name_); }

 private:
  const char* name_;
};

std::string write_config(const std::string& text) {
  // Tests run as processes of their own, side by side.
  const std::string path =
      testing::TempDir() + "h3_" + testing::UnitTest::GetInstance()->current_test_info()->name() + ".toml";
  std::ofstream(path) << text;
  return path;
}

TEST(Flags, TableIsConsistent) {
  std::set<std::string> names;
  const std::vector<std::string> keys = request_keys();
  for (const Flag& flag : flag_table()) {
    EXPECT_TRUE(names.insert(spelled(flag)).second) << flag.name;
    for (const std::string& alias : alias_list(flag)) EXPECT_TRUE(names.insert(alias).second) << alias;
    EXPECT_EQ(*flag.value == '\0', flag.kind == ValueKind::none) << flag.name;
    EXPECT_NE(*flag.help, '\0') << flag.name;
    if (*flag.field != '\0') {
      EXPECT_NE(std::find(keys.begin(), keys.end(), flag.field), keys.end()) << flag.name;
    }
  }
}

TEST(Flags, SpellingsAndAliases) {
  const Arguments arguments =
      parse_arguments({"model.safetensors", "-W", "512", "--height=288", "--video-frames", "39", "-s", "-1", "--vae",
                       "v.safetensors", "-i", "a.png", "--out", "c.avi", "--exact", "--", "-strange-name"},
                      kGenerate);
  EXPECT_EQ(arguments.positional, (std::vector<std::string>{"model.safetensors", "-strange-name"}));
  EXPECT_EQ(arguments.all("model"), std::vector<std::string>{"v.safetensors"});
  const Request request = arguments.request();
  EXPECT_EQ(request.width, 512);
  EXPECT_EQ(request.height, 288);
  EXPECT_EQ(request.frames, 39);
  EXPECT_TRUE(request.seed->random);
  EXPECT_EQ(request.first_frame, "a.png");
  EXPECT_EQ(request.output, "c.avi");
  EXPECT_EQ(request.exact, true);
  EXPECT_EQ(request.origin.at("width"), "given");
}

TEST(Flags, CompositeValues) {
  const Request request = parse_arguments({"--size", "512x288", "--shift", "6/3.5", "--grid-points", "5", "--no-audio",
                                           "--dump", "text=a.st", "--dump", "final=b.st"},
                                          kGenerate)
                              .request();
  EXPECT_EQ(request.width, 512);
  EXPECT_EQ(request.height, 288);
  EXPECT_EQ(request.video_shift, 6);
  EXPECT_EQ(request.audio_shift, 3.5);
  EXPECT_EQ(request.steps, 4);
  EXPECT_EQ(request.audio, false);
  EXPECT_EQ(request.dumps.size(), 2u);
  EXPECT_EQ(request.dumps[1].second, "b.st");
}

TEST(Flags, LastOneWins) { EXPECT_EQ(parse_arguments({"--steps", "4", "--steps", "9"}, kGenerate).request().steps, 9); }

TEST(Flags, BadValuesAreNamed) {
  EXPECT_EQ(refusal({"--width", "abc"}), "--width: \"abc\" is not a whole number, give 32..4096");
  EXPECT_EQ(refusal({"--width", "12.5"}), "--width: \"12.5\" is not a whole number, give 32..4096");
  EXPECT_EQ(refusal({"--width", "99999999999"}), "--width: \"99999999999\" is not a whole number, give 32..4096");
  EXPECT_EQ(refusal({"--width", ""}), "--width: \"\" is not a whole number, give 32..4096");
  EXPECT_EQ(refusal({"--frames", "0x10"}), "--frames: \"0x10\" is not a whole number, give 1..1450");
  EXPECT_EQ(refusal({"--seconds", "nan"}), "--seconds: \"nan\" is not a number, give up to 60.4");
  EXPECT_EQ(refusal({"--size", "512"}), "--size: \"512\" is not WIDTHxHEIGHT, for example 960x544");
  EXPECT_EQ(refusal({"--shift", "12/"}), "--shift: \"12/\" is not a shift, for example 12/3");
  EXPECT_EQ(refusal({"--dump", "text"}), "--dump: \"text\" is not STAGE=FILE, for example latents=latents.safetensors");
  EXPECT_EQ(refusal({"--exact=maybe"}), "--exact: \"maybe\" is not a switch value, give true or false");
  EXPECT_NE(refusal({"--seed", "-5"}).find("seed: \"-5\" is not allowed"), std::string::npos);
  EXPECT_EQ(refusal({"--grid-points", "1"}), "--grid-points: 1 is not allowed, give 2..1001");
}

TEST(Flags, UnknownFlagsGetASuggestion) {
  EXPECT_EQ(refusal({"--framse", "5"}), "unknown flag --framse (did you mean --frames?)");
  EXPECT_EQ(refusal({"--frobnicate"}), "unknown flag --frobnicate, see --help");
  EXPECT_EQ(refusal({"--prompt", "x"}, kDevices), "unknown flag --prompt, see --help");
}

TEST(Flags, MissingValues) {
  EXPECT_EQ(refusal({"--width"}), "--width needs a value: --width N");
  EXPECT_EQ(refusal({"--prompt", "--width", "5"}), "--prompt needs a value: --prompt TEXT");
  EXPECT_EQ(refusal({"--prompt=--width"}), "(accepted)");
}

TEST(Flags, CommandLineBeatsEnvironmentBeatsConfig) {
  const Environment steps("H3_STEPS", "7"), seed("H3_SEED", "9");
  const std::string config = write_config("steps = 5\nseed = 5\nframes = 22  # short\nprompt = \"a \\\"b\\\" c\"\n");
  const Request request = parse_arguments({"--config", config, "--steps", "3"}, kGenerate).request();
  EXPECT_EQ(request.steps, 3);
  EXPECT_EQ(request.seed->value, 9u);
  EXPECT_EQ(request.frames, 22);
  EXPECT_EQ(request.prompt, "a \"b\" c");
  EXPECT_EQ(request.origin.at("seed"), "environment H3_SEED");
  EXPECT_EQ(request.origin.at("frames"), "config " + config);
}

TEST(Flags, AStrongerSourceReplacesTheWholeGroup) {
  const std::string config = write_config("width = 512\nheight = 288\nseconds = 2\nmodel = [\"a\", 'b']\n");
  const Arguments arguments = parse_arguments({"--config", config, "--aspect", "1:1", "--frames", "39"}, kGenerate);
  const Request request = arguments.request();
  EXPECT_FALSE(request.width);
  EXPECT_FALSE(request.seconds);
  EXPECT_EQ(request.frames, 39);
  EXPECT_EQ(arguments.all("model"), (std::vector<std::string>{"a", "b"}));
}

TEST(Flags, BadEnvironmentAndConfigAreLocated) {
  {
    const Environment steps("H3_STEPS", "many");
    EXPECT_EQ(refusal({}), "environment H3_STEPS: --steps: \"many\" is not a whole number, give 1..1000");
  }
  const auto config = [&](const char* text) {
    const std::string path = write_config(text);
    std::string message = refusal({"--config", path});
    const size_t at = message.find(path);
    return at == std::string::npos ? message : message.replace(at, path.size(), "FILE");
  };
  EXPECT_EQ(config("stpes = 4\n"), "FILE:1: unknown key stpes (did you mean steps?)");
  EXPECT_EQ(config("\n\nsteps 4\n"), "FILE:3: expected = after steps");
  EXPECT_EQ(config("steps = four\n"), "FILE:1: \"four\" is neither a number, true nor false; put text in quotes");
  EXPECT_EQ(config("steps = 1\nsteps = 2\n"), "FILE:2: key steps appears twice");
  EXPECT_EQ(config("prompt = \"open\n"), "FILE:1: a string has no closing quote");
  EXPECT_EQ(config("[generate]\n"), "FILE:1: tables are not used here, write key = value lines");
  EXPECT_EQ(config("steps = [1, 2]\n"), "FILE:1: steps takes one value");
  EXPECT_EQ(config("model = [\"a\"\n"), "FILE:2: an array has no closing bracket");
  EXPECT_EQ(config("config = \"x\"\n"), "FILE:1: unknown key config");
  EXPECT_EQ(config("exact = true\nframes = 3_0\n"), "(accepted)");
}

TEST(Config, Values) {
  const std::vector<ConfigEntry> entries =
      parse_config("a = 1_000 # c\nb='x\\y'\nc = \"t\\n\\u00e4\"\n\nd = [ 1,\n 2, # two\n ]\ne = +2.5e3\n", "f");
  ASSERT_EQ(entries.size(), 5u);
  EXPECT_EQ(entries[0].values[0], "1000");
  EXPECT_EQ(entries[1].values[0], "x\\y");
  EXPECT_EQ(entries[2].values[0], "t\n\xc3\xa4");
  EXPECT_EQ(entries[3].values, (std::vector<std::string>{"1", "2"}));
  EXPECT_EQ(entries[4].values[0], "2.5e3");
  EXPECT_EQ(entries[4].line, 8);
}

}  // namespace
}  // namespace h3
