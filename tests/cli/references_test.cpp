// References as users give them: files of every kind through the whole program. Clips are made with the ffmpeg command.
#include <cstdlib>

#include "tests/cli/program.h"

namespace h3 {
namespace {

class References : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    write("a.ppm", "P6\n64 48\n255\n" + std::string(64 * 48 * 3, '\x60'));
  }
  // False when there is no ffmpeg here.
  bool make(const std::string& arguments) const {
    const std::string command = "cd '" + folder_.string() + "' && ffmpeg -v error -y " + arguments + " 2>/dev/null";
    return std::system(command.c_str()) == 0;
  }
  std::vector<std::string> asked(const std::vector<std::string>& more, const char* prompt = "A red circle.") const {
    std::vector<std::string> arguments = {"plan", "-p", prompt, "--steps", "1", "--size", "64x64", "--frames", "22"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::string table(const std::vector<std::string>& more) const {
    const Outcome outcome = run(asked(more));
    EXPECT_NE(outcome.code, 2) << outcome.err;
    return outcome.out + outcome.err;
  }
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(References, RequestsThatCannotBe) {
  expect_refused(asked({"-r", "none.png"}), 1, {"none.png"});
  expect_refused(asked({"-r", "a.ppm", "--first-frame", "a.ppm"}), 2, {"references", "first or last frame"});
  expect_refused(asked({"--ref-video-audio", "a.wav"}), 2, {"--ref-video-audio", "a.wav", "before any --ref-video"});
  expect_refused(asked({"-r", "a.ppm", "--ref-image-size", "huge"}), 2, {"ref_image_size", "huge", "official"});
  expect_refused(asked({"-r", "a.ppm", "--strict"}), 2, {"<Picture 1>", "a.ppm", "strict"});
  expect_refused(asked({"--strict"}, "<Video 1> again"), 2, {"<Video 1>", "names nothing"});
}

TEST_F(References, FilesOfEveryKind) {
  const std::string picture = "-f lavfi -i testsrc=size=96x64:rate=30 ";
  const std::string tone = "-f lavfi -i sine=frequency=440:sample_rate=44100 ";
  if (!make(picture + tone + "-t 1 -c:v mpeg4 -c:a pcm_s16le sound.mov")) GTEST_SKIP() << "no ffmpeg command";
  // With sound, in front of a picture: the sound's ordinal comes first. 30 frames a second become 22 of 24.
  const std::string both = table({"--ref-video", "sound.mov", "-r", "a.ppm"});
  EXPECT_HAS(both, "<Audio 1> = sound of sound.mov");
  EXPECT_HAS(both, "<Video 1> = sound.mov (1.00 s of 96x64 at 30 fps -> 22 frames of");
  EXPECT_EQ(table({"--ref-video", "sound.mov", "--ref-silent"}).find("<Audio 1>"), std::string::npos);
  ASSERT_TRUE(make(picture + "-t 1 -c:v mpeg4 -an silent.mov"));
  EXPECT_EQ(table({"--ref-video", "silent.mov"}).find("<Audio 1>"), std::string::npos);
  ASSERT_TRUE(make(tone + "-t 1 tone.wav"));
  EXPECT_HAS(table({"-r", "a.ppm", "--ref-audio", "tone.wav"}), "<Audio 1> = tone.wav (1.00 s at 44100 Hz mono");
  EXPECT_HAS(table({"--ref-video", "silent.mov", "--ref-video-audio", "tone.wav"}), "<Audio 1> = sound of tone.wav");
  expect_refused(asked({"--ref-video", "tone.wav"}), 2, {"tone.wav", "no pictures", "audio"});
  expect_refused(asked({"--ref-audio", "tone.wav"}), 2, {"cannot stand alone"});
  expect_refused(asked({"-r", "a.ppm", "--ref-audio", "silent.mov"}), 2, {"silent.mov", "no sound"});
  ASSERT_TRUE(make(picture + "-frames:v 1 -c:v mpeg4 one.mov"));
  expect_refused(asked({"--ref-video", "one.mov"}), 2, {"one.mov", "1 frames", "at least 13"});
  ASSERT_TRUE(make("-display_rotation 90 -i silent.mov -c copy turned.mov") ||
              make("-i silent.mov -c copy -metadata:s:v rotate=90 turned.mov"));
  EXPECT_HAS(table({"--ref-video", "turned.mov"}), "of 64x96 at");
  ASSERT_TRUE(make(picture + "-t 1 -vf select='not(mod(n\\,3))+lt(n\\,12)' -fps_mode vfr -c:v mpeg4 vfr.mkv"));
  EXPECT_HAS(table({"--ref-video", "vfr.mkv"}), "-> 22 frames");
  ASSERT_TRUE(make(picture + "-t 1 -pix_fmt yuv422p10le -c:v ffv1 deep.mkv"));
  EXPECT_HAS(table({"--ref-video", "deep.mkv"}), "reduced to 8");
  ASSERT_TRUE(make(picture + "-t 1 -pix_fmt rgba -c:v png alpha.mov"));
  EXPECT_HAS(table({"--ref-video", "alpha.mov"}), "<Video 1> = alpha.mov");
  write("broken.mov", read("sound.mov").substr(0, 3000));
  expect_refused(asked({"--ref-video", "broken.mov"}), 1, {"broken.mov"});
}

}  // namespace
}  // namespace h3
