// Clips written and read back through the product's own reader.
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "media/files.h"
#include "tests/unit/media/fixtures.h"

namespace h3 {
namespace {

constexpr int kWidth = 96, kHeight = 64, kFrames = 22;
constexpr int64_t kSamples = 29600;  // 800 round(22 / 24 * 40): 267 more than the frames last
constexpr char kMetadata[] = "{\"prompt\":\"a \\\"quoted\\\" caf\xc3\xa9\",\"seed\":18446744073709551615}";

std::vector<std::string> write_clip(const std::string& path, ClipOptions options = {}, int frames = kFrames) {
  options.width = kWidth;
  options.height = kHeight;
  if (options.metadata.empty()) options.metadata = kMetadata;
  const std::unique_ptr<ClipWriter> writer = open_clip(path, options);
  if (options.audio) writer->set_audio(tone(kSamples, 32000).data(), kSamples);
  // In uneven runs, as a decoder emits them.
  for (int first = 0; first < frames; first += 5) {
    const int count = std::min(5, frames - first);
    writer->add_frames(moving_frames(first, count, kWidth, kHeight).data(), count);
  }
  return writer->finish();
}

double worst_psnr(const ClipData& clip, int frames = kFrames) {
  const std::vector<float> source = moving_frames(0, frames, kWidth, kHeight);
  double worst = 1e9;
  for (int i = 0; i < std::min<int>(frames, static_cast<int>(clip.frames.size())); ++i) {
    worst = std::min(
        worst, psnr(clip.frames[static_cast<size_t>(i)], frame_image(source.data(), frames, i, kWidth, kHeight).rgb));
  }
  return worst;
}

struct Container {
  const char* name;
  double psnr;  // the least of any frame
  int sample_rate;
  int64_t slack;  // samples by which the sound may differ in length
  bool ffmpeg;
};

void PrintTo(const Container& container, std::ostream* out) { *out << container.name; }

class ClipContainer : public testing::TestWithParam<Container> {};

TEST_P(ClipContainer, RoundTrip) {
#if !H3_HAVE_FFMPEG
  if (GetParam().ffmpeg) GTEST_SKIP() << "built without FFmpeg";
#endif
  const TempFolder folder;
  const std::string path = folder / GetParam().name;
  const std::vector<std::string> written = write_clip(path);
  for (const std::string& file : written) EXPECT_TRUE(std::filesystem::exists(file)) << file;
  const ClipData clip = read_clip(path);
  EXPECT_EQ(clip.width, kWidth);
  EXPECT_EQ(clip.height, kHeight);
  EXPECT_DOUBLE_EQ(clip.fps, 24);
  ASSERT_EQ(clip.frames.size(), static_cast<size_t>(kFrames));
  for (int i = 0; i < kFrames; ++i) EXPECT_NEAR(clip.times[static_cast<size_t>(i)], i / 24.0, 1e-3) << i;
  EXPECT_GT(worst_psnr(clip), GetParam().psnr);
  EXPECT_EQ(clip.sample_rate, GetParam().sample_rate);
  ASSERT_EQ(clip.channels, 2);
  const int64_t count = static_cast<int64_t>(clip.samples.size()) / 2, want = kSamples * clip.sample_rate / 32000;
  EXPECT_NEAR(static_cast<double>(count), static_cast<double>(want), static_cast<double>(GetParam().slack));
  // Same duration to within one frame, the channels in their places and nothing shifted or lost.
  EXPECT_NEAR(static_cast<double>(count) / clip.sample_rate, kFrames / 24.0, 1 / 24.0);
  EXPECT_GT(tone_share(clip.samples.data(), count, 440, clip.sample_rate), 0.98);
  EXPECT_GT(tone_share(clip.samples.data() + count, count, 660, clip.sample_rate), 0.98);
  EXPECT_NEAR(clip.samples[static_cast<size_t>(clip.sample_rate / 440 / 4)], 0.5,
              0.05);  // a crest, so no shift in time
  EXPECT_EQ(read_clip_metadata(path), kMetadata);
}

TEST_P(ClipContainer, EqualInputsGiveEqualBytes) {
#if !H3_HAVE_FFMPEG
  if (GetParam().ffmpeg) GTEST_SKIP() << "built without FFmpeg";
#endif
  const TempFolder one, two;
  const std::vector<std::string> a = write_clip(one / GetParam().name), b = write_clip(two / GetParam().name);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_FALSE(file_bytes(a[i]).empty());
    EXPECT_EQ(file_bytes(a[i]), file_bytes(b[i])) << a[i];
  }
}

TEST_P(ClipContainer, AnUnfinishedClipLeavesNothing) {
#if !H3_HAVE_FFMPEG
  if (GetParam().ffmpeg) GTEST_SKIP() << "built without FFmpeg";
#endif
  const TempFolder folder;
  ClipOptions options{.width = kWidth, .height = kHeight};
  options.wav_path = folder / "extra.wav";
  options.frames_dir = folder / "frames";
  {
    const std::unique_ptr<ClipWriter> writer = open_clip(folder / GetParam().name, options);
    writer->set_audio(tone(kSamples, 32000).data(), kSamples);
    writer->add_frames(moving_frames(0, 5, kWidth, kHeight).data(), 5);
    for (const std::string& name : folder.list()) EXPECT_EQ(name[0], '.') << name << " appeared before finish()";
  }
  EXPECT_TRUE(folder.list().empty());
}

TEST_P(ClipContainer, AFullDiskIsAnErrorAndLeavesNothing) {
#if !H3_HAVE_FFMPEG
  if (GetParam().ffmpeg) GTEST_SKIP() << "built without FFmpeg";
#endif
  const TempFolder folder;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{2000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string text = error_of([&] { write_clip(folder / GetParam().name); }, Code::io);
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(text.find("cannot write " + folder.path()), std::string::npos) << text;
  EXPECT_NE(text.find("File too large"), std::string::npos) << text;
  EXPECT_TRUE(folder.list().empty());
}

INSTANTIATE_TEST_SUITE_P(Media, ClipContainer,
                         testing::Values(Container{"clip.mp4", 38, 32000, 0, true},
                                         Container{"clip.webm", 36, 48000, 0, true},
                                         Container{"clip.avi", 36, 32000, 0, true},
                                         Container{"clip.y4m", 40, 32000, 0, false},
                                         Container{"clip/", 99, 32000, 0, false}),
                         [](const testing::TestParamInfo<Container>& container) {
                           std::string name = container.param.name;
                           name.erase(0, 4);
                           return name == "/" ? "folder" : name.substr(1);
                         });

}  // namespace
}  // namespace h3
