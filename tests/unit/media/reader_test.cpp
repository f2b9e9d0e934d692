// Clips and sounds that others made: variable rates, rotation, depths, alpha, cover art, damage.
#include <filesystem>

#include "media/files.h"
#include "tests/unit/media/fixtures.h"

namespace h3 {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(ClipPath, IsCheckedBeforeAnyWork) {
  const TempFolder folder;
  EXPECT_TRUE(contains(error_of([&] { check_clip_path(folder / "clip.xyz"); }, Code::usage), ".y4m"));
  EXPECT_TRUE(contains(error_of([&] { check_clip_path(folder / "clip"); }, Code::usage), "extension"));
  EXPECT_TRUE(contains(error_of([&] { check_clip_path(""); }, Code::usage), "empty"));
  EXPECT_TRUE(contains(error_of([&] { check_clip_path(folder / "none/clip.y4m"); }, Code::io), "does not exist"));
  std::filesystem::create_directory(folder / "clip.y4m");
  EXPECT_TRUE(contains(error_of([&] { check_clip_path(folder / "clip.y4m"); }, Code::io), "it is a folder"));
  check_clip_path(folder / "CLIP.Y4M");
  check_clip_path(folder / "new/");
  write_bytes(folder / "clip.y4m/holiday.jpg", {1, 2, 3});
  EXPECT_TRUE(contains(error_of([&] { check_clip_path(folder / "clip.y4m/"); }, Code::usage), "not empty"));
#if !H3_HAVE_FFMPEG
  EXPECT_TRUE(contains(error_of([&] { check_clip_path(folder / "clip.mp4"); }, Code::usage), "H3_FFMPEG"));
#endif
}

TEST(ClipFolder, ASecondClipReplacesTheFirstCompletely) {
  const TempFolder folder;
  const auto write = [&](int frames) {
    const std::unique_ptr<ClipWriter> writer = open_clip(folder / "frames/", {.width = 8, .height = 6, .audio = false});
    writer->add_frames(moving_frames(0, frames, 8, 6).data(), frames);
    return writer->finish();
  };
  EXPECT_EQ(write(5).size(), 6u);
  EXPECT_EQ(write(2).size(), 3u);
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "frames")) found += entry.is_regular_file();
  EXPECT_EQ(found, 3);
  EXPECT_EQ(folder.list(), std::vector<std::string>{"frames"});
}

TEST(ClipOutputs, SoundAndFramesBesideTheClip) {
  const TempFolder folder;
  ClipOptions options{.width = 8, .height = 6, .metadata = "{\"a\":1}"};
  options.wav_path = folder / "extra.wav";
  options.frames_dir = folder / "frames";
  const std::unique_ptr<ClipWriter> writer = open_clip(folder / "clip.y4m", options);
  const std::vector<float> sound = {0.5f, -0.5f, 2, -2, 0.25f, 1};  // left, right
  writer->set_audio(sound.data(), 3);
  writer->add_frames(moving_frames(0, 2, 8, 6).data(), 2);
  EXPECT_EQ(writer->finish().front(), folder / "clip.y4m");
  EXPECT_EQ(folder.list(), (std::vector<std::string>{"clip.y4m", "clip.y4m.json", "extra.wav", "frames"}));
  EXPECT_TRUE(std::filesystem::exists(folder / "frames/frame_0001.png") ||
              std::filesystem::exists(folder / "frames/frame_0001.ppm"));
  EXPECT_FALSE(std::filesystem::exists(folder / "frames/sound.wav"));
  // 44 bytes of header, then left and right interleaved; half away from zero, clamped (formats H.2).
  const std::vector<uint8_t> wav = file_bytes(folder / "extra.wav");
  ASSERT_EQ(wav.size(), 44u + 12);
  const int16_t want[6] = {16384, -32767, -16384, 8192, 32767, 32767};
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(static_cast<int16_t>(wav[44 + 2 * i] | wav[45 + 2 * i] << 8), want[i]) << i;
  }
  const Sound back = read_sound(folder / "extra.wav");
  EXPECT_EQ(back.sample_rate, 32000);
  ASSERT_EQ(back.samples.size(), 6u);
  EXPECT_NEAR(back.samples[0], 0.5, 1e-4);
  EXPECT_NEAR(back.samples[3], -1, 1e-4);
}

TEST(Clip, OddSizesAndMissingSoundAreRefused) {
  const TempFolder folder;
  EXPECT_TRUE(contains(error_of([&] { open_clip(folder / "a.y4m", {.width = 7, .height = 6}); }, Code::usage), "7x6"));
  EXPECT_TRUE(contains(
      error_of([&] { open_clip(folder / "a.wav", {.width = 8, .height = 6, .audio = false}); }, Code::usage), "sound"));
  EXPECT_TRUE(folder.list().empty());
}

TEST(ClipReader, DamagedY4mAndWav) {
  const TempFolder folder;
  {
    const std::unique_ptr<ClipWriter> writer = open_clip(folder / "a.y4m", {.width = 8, .height = 6});
    writer->set_audio(tone(50, 32000).data(), 50);
    writer->add_frames(moving_frames(0, 2, 8, 6).data(), 2);
    writer->finish();
  }
  std::vector<uint8_t> y4m = file_bytes(folder / "a.y4m"), wav = file_bytes(folder / "a.wav");
  y4m.pop_back();
  write_bytes(folder / "a.y4m", y4m);
  EXPECT_TRUE(contains(error_of([&] { read_clip(folder / "a.y4m"); }, Code::data), "truncated"));
  const std::string header(y4m.begin(), std::find(y4m.begin(), y4m.end(), '\n'));
  for (const auto& [from, to] : {std::pair("W8", "W0"), std::pair("H6", "H99999"), std::pair("F24:1", "F0:0")}) {
    std::string changed = header;
    changed.replace(changed.find(from), std::string(from).size(), to);
    write_bytes(folder / "b.y4m", {changed.begin(), changed.end()});
    error_of([&] { read_clip(folder / "b.y4m"); }, Code::data);
  }
  for (size_t cut = 0; cut < wav.size(); cut += 3) {
    write_bytes(folder / "c.wav", {wav.begin(), wav.begin() + static_cast<int64_t>(cut)});
    try {
      read_sound(folder / "c.wav");
    } catch (const Error& error) {
      EXPECT_TRUE(contains(error.what(), "c.wav"));
    }
  }
}

#if H3_HAVE_FFMPEG
// The grey of frame i and the red of the other half, by one pixel each.
void expect_frame(const ClipData& clip, size_t i, int grey_x, int grey_y, int red_x, int red_y) {
  const uint8_t* grey = clip.frames[i].data() + (static_cast<size_t>(grey_y) * clip.width + grey_x) * 3;
  const uint8_t* red = clip.frames[i].data() + (static_cast<size_t>(red_y) * clip.width + red_x) * 3;
  for (int c = 0; c < 3; ++c) EXPECT_NEAR(grey[c], 40 + 20 * static_cast<int>(i), 6) << i;
  EXPECT_NEAR(red[0], 220, 12);
  EXPECT_NEAR(red[1], 20, 12);
}

struct Made {
  const char* name;
  const char* file;
  MadeClip clip;
};

void PrintTo(const Made& made, std::ostream* out) { *out << made.name; }

class MadeClips : public testing::TestWithParam<Made> {};

TEST_P(MadeClips, ReadRight) {
  const TempFolder folder;
  const MadeClip& made = GetParam().clip;
  const std::string path = folder / GetParam().file;
  make_clip(path, made);
  const ClipData clip = read_clip(path);
  const bool turned = made.rotation == 90 || made.rotation == 270;
  ASSERT_EQ(clip.width, turned ? made.height : made.width);
  ASSERT_EQ(clip.height, turned ? made.width : made.height);
  ASSERT_EQ(clip.frames.size(), made.times.size());
  for (size_t i = 0; i < made.times.size(); ++i) {
    EXPECT_NEAR(clip.times[i], static_cast<double>(made.times[i] - made.times[0]) / 24, 2e-3) << i;
    if (made.alpha) continue;
    const int w = clip.width, h = clip.height;
    if (made.rotation == 0) expect_frame(clip, i, w - 9, h / 2, 8, h / 2);
    if (made.rotation == 90) expect_frame(clip, i, w / 2, h - 9, w / 2, 8);  // clockwise: the left half is on top
    if (made.rotation == 180) expect_frame(clip, i, 8, h / 2, w - 9, h / 2);
    if (made.rotation == 270) expect_frame(clip, i, w / 2, 8, w / 2, h - 9);
  }
  if (made.alpha) {
    EXPECT_NEAR(clip.frames[0][8 * 3], 110, 8);  // above, half of 220
    EXPECT_NEAR(clip.frames[0][(static_cast<size_t>(clip.height - 4) * clip.width + 8) * 3], 220, 8);
    EXPECT_TRUE(std::any_of(clip.warnings.begin(), clip.warnings.end(),
                            [](const std::string& text) { return contains(text, "alpha"); }));
  }
  EXPECT_EQ(clip.channels, made.audio != nullptr ? made.channels : 0);
  EXPECT_EQ(clip.sample_rate, made.audio != nullptr ? made.sample_rate : 0);
}

INSTANTIATE_TEST_SUITE_P(
    Media, MadeClips,
    testing::Values(
        Made{"plain", "a.mov", {}}, Made{"one_frame", "a.mov", {.times = {0}}},
        Made{"variable_rate", "a.mkv", {.muxer = "matroska", .times = {0, 1, 5, 6, 20}}},
        Made{"late_start", "a.mkv", {.muxer = "matroska", .times = {30, 31, 33}}},
        Made{"rotated_90", "a.mov", {.rotation = 90}}, Made{"rotated_180", "a.mov", {.rotation = 180}},
        Made{"rotated_270", "a.mov", {.rotation = 270}},
        Made{"ten_bits", "a.mkv", {.muxer = "matroska", .video = "ffv1", .pixel_format = "yuv420p10le"}},
        Made{"alpha", "a.mkv", {.muxer = "matroska", .video = "ffv1", .pixel_format = "yuva420p", .alpha = true}},
        Made{"rgb_alpha", "a.mov", {.video = "png", .pixel_format = "rgba", .alpha = true}},
        Made{"sound", "a.mov", {.audio = "aac"}},
        Made{"mono", "a.avi", {.muxer = "avi", .audio = "pcm_s16le", .channels = 1}},
        Made{"six_channels", "a.mkv", {.muxer = "matroska", .audio = "pcm_s16le", .channels = 6}}),
    [](const testing::TestParamInfo<Made>& made) { return made.param.name; });

TEST(ClipReader, SoundOnlyWithCoverArtHasNoPictures) {
  const TempFolder folder;
  make_clip(folder / "a.m4a", {.muxer = "ipod", .video = nullptr, .audio = "aac", .samples = 20000, .cover = true});
  const ClipData clip = read_clip(folder / "a.m4a");
  EXPECT_EQ(clip.width, 0);
  EXPECT_TRUE(clip.frames.empty());
  EXPECT_EQ(clip.sample_rate, 44100);
  EXPECT_NEAR(static_cast<double>(clip.samples.size()), 2 * 20000, 2 * 45);  // the container counts milliseconds
}

TEST(ClipReader, SoundIsExactCutAndAligned) {
  const TempFolder folder;
  make_clip(
      folder / "a.wav",
      {.muxer = "wav", .video = nullptr, .audio = "pcm_s16le", .sample_rate = 8000, .channels = 1, .samples = 5000});
  const Sound sound = read_sound(folder / "a.wav");
  ASSERT_EQ(sound.count, 5000);
  for (int i = 0; i < 5000; ++i)
    ASSERT_FLOAT_EQ(sound.samples[static_cast<size_t>(i)], static_cast<float>(i) / 32768) << i;
  EXPECT_EQ(read_sound(folder / "a.wav", 0.25).count, 2000);
  // Half a second late: silence in front; the video starts at zero.
  make_clip(folder / "late.mkv",
            {.muxer = "matroska", .audio = "pcm_s16le", .sample_rate = 8000, .samples = 4000, .audio_offset = 4000});
  const Sound late = read_sound(folder / "late.mkv");
  ASSERT_EQ(late.count, 8000);
  EXPECT_EQ(late.samples[3999], 0);
  EXPECT_FLOAT_EQ(late.samples[4001], 2.0f / 32768);
  // Half a second early, because the pictures start late: cut off.
  make_clip(folder / "early.mkv",
            {.muxer = "matroska", .audio = "pcm_s16le", .times = {12, 13, 14}, .sample_rate = 8000, .samples = 8000});
  EXPECT_EQ(read_sound(folder / "early.mkv").count, 4000);
}

TEST(ClipReader, LimitsAndRefusals) {
  const TempFolder folder;
  make_clip(folder / "a.mov", {.audio = "aac"});
  EXPECT_EQ(read_clip(folder / "a.mov", {.max_seconds = 0.1}).frames.size(), 3u);
  EXPECT_TRUE(contains(error_of([&] { read_clip(folder / "a.mov", {.max_bytes = 20000}); }, Code::memory), "64x48"));
  EXPECT_TRUE(contains(error_of([&] { read_clip(folder / "none.mov"); }, Code::io), "none.mov"));
  write_bytes(folder / "text.mp4", {'n', 'o', 't', ' ', 'a', ' ', 'c', 'l', 'i', 'p'});
  EXPECT_TRUE(contains(error_of([&] { read_clip(folder / "text.mp4"); }, Code::data), "text.mp4"));
  // A playlist must not make us open what it names.
  const std::string list = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n" + (folder / "a.mov") + "\n#EXT-X-ENDLIST\n";
  write_bytes(folder / "list.m3u8", {list.begin(), list.end()});
  error_of([&] { read_clip(folder / "list.m3u8"); }, Code::data);
  const std::string script = "ffconcat version 1.0\nfile a.mov\n";
  write_bytes(folder / "list.ffconcat", {script.begin(), script.end()});
  error_of([&] { read_clip(folder / "list.ffconcat"); }, Code::data);
}

TEST(ClipReader, TruncatedAndDamagedClipsNeverCrash) {
  const TempFolder folder;
  ClipOptions options{.width = 64, .height = 48};
  const std::unique_ptr<ClipWriter> writer = open_clip(folder / "a.mp4", options);
  writer->set_audio(tone(16000, 32000).data(), 16000);
  writer->add_frames(moving_frames(0, 12, 64, 48).data(), 12);
  writer->finish();
  const std::vector<uint8_t> bytes = file_bytes(folder / "a.mp4");
  // With the index in front a cut file still opens; what is missing must be said.
  int refused = 0;
  for (int part = 1; part <= 20; ++part) {
    write_bytes(folder / "b.mp4", {bytes.begin(), bytes.begin() + static_cast<int64_t>(bytes.size()) * part / 21});
    try {
      read_clip(folder / "b.mp4");
    } catch (const Error& error) {
      ++refused;
      EXPECT_TRUE(contains(error.what(), "b.mp4")) << error.what();
    }
  }
  EXPECT_EQ(refused, 20);
  uint32_t state = 9;
  for (int round = 0; round < 60; ++round) {
    std::vector<uint8_t> damaged = bytes;
    for (int flips = 0; flips < 8; ++flips) {
      state = state * 1664525u + 1013904223u;
      damaged[(state >> 8) % damaged.size()] = static_cast<uint8_t>(state);
    }
    write_bytes(folder / "c.mp4", damaged);
    try {
      read_clip(folder / "c.mp4", {.max_bytes = 1 << 26});
      read_clip_metadata(folder / "c.mp4");
    } catch (const Error& error) {
      EXPECT_FALSE(contains(error.what(), "\n"));
    }
  }
}
#endif

}  // namespace
}  // namespace h3
