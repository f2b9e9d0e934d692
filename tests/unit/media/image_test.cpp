// Stills in and out, and their fitting to a canvas. The Lanczos itself is pinned by the goldens (h3-parity, stage
// image).
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "media/image_probe.h"
#include "media/pixels.h"
#include "tests/unit/media/fixtures.h"

namespace h3 {
namespace {

Image pattern(int width, int height) {
  Image image{.width = width, .height = height, .rgb = {}, .warnings = {}};
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (const int v : {17 * x + 3 * y, x * y, 7 * (x ^ y)}) image.rgb.push_back(static_cast<uint8_t>(v));
    }
  }
  return image;
}

std::vector<uint8_t> text_bytes(const std::string& text) { return {text.begin(), text.end()}; }

std::string error_reading(const std::string& path, Code code = Code::data) {
  return error_of([&] { read_image(path); }, code);
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Image, PpmRoundTripAndDepths) {
  const TempFolder folder;
  const Image image = pattern(13, 7);
  write_png(folder / "a.ppm", image);
  const Image back = read_image(folder / "a.ppm");
  EXPECT_EQ(back.rgb, image.rgb);
  EXPECT_EQ(back.width, 13);
  EXPECT_TRUE(back.warnings.empty());
  // Comments, a maximum of 15, and grey.
  write_bytes(folder / "b.ppm", text_bytes(std::string("P5 # c\n# d\n2\t1\n15\n") + '\x0f' + '\x07'));
  EXPECT_EQ(read_image(folder / "b.ppm").rgb, (std::vector<uint8_t>{255, 255, 255, 119, 119, 119}));
  std::vector<uint8_t> deep = text_bytes("P6 1 1 65535\n");
  for (const uint8_t byte : {0xff, 0xff, 0x80, 0x00, 0x00, 0x01}) deep.push_back(byte);
  write_bytes(folder / "c.ppm", deep);
  const Image sixteen = read_image(folder / "c.ppm");
  EXPECT_EQ(sixteen.rgb, (std::vector<uint8_t>{255, 128, 0}));
  ASSERT_EQ(sixteen.warnings.size(), 1u);
  EXPECT_TRUE(contains(sixteen.warnings[0], "16-bit"));
}

TEST(Image, RefusalsNameTheFileAndTheReason) {
  const TempFolder folder;
  EXPECT_TRUE(contains(error_reading(folder / "none.png", Code::io), "none.png: No such file"));
  EXPECT_TRUE(contains(error_reading(folder.path(), Code::io), "it is a folder"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(contains(error_reading(folder / "pipe", Code::io), "not a regular file"));
  const std::pair<const char*, const char*> cases[] = {{"", "it is empty"},
                                                       {"hello world, this is text", "it is text"},
                                                       {"%PDF-1.4", "PDF"},
                                                       {"GIF89a......", "GIF"},
                                                       {"P6 3 4 70000\n", "maximum is 70000"},
                                                       {"P6 3 x", "height"},
                                                       {"P6 3 4 255\nxx", "truncated"},
                                                       {"P6 3", "truncated"},
                                                       {"P6 0 4 255\nxxxx", "size is zero"},
                                                       {"P6 99999 99999 255\nxxxx", "scale it down"}};
  for (const auto& [bytes, reason] : cases) {
    write_bytes(folder / "x", text_bytes(bytes));
    const std::string text = error_reading(folder / "x");
    EXPECT_TRUE(contains(text, reason)) << bytes << " -> " << text;
    EXPECT_TRUE(contains(text, folder / "x")) << text;
  }
}

TEST(Image, CoverOfAnExtremeAspectComputesOnlyWhatIsKept) {
  const Image line = fit_to_canvas(pattern(1, 20000), 640, 384, Fit::cover);
  EXPECT_EQ(line.rgb.size(), 640u * 384 * 3);
  const Image wide = fit_to_canvas(pattern(20000, 1), 640, 384, Fit::cover);
  EXPECT_EQ(wide.rgb.size(), 640u * 384 * 3);
}

TEST(Image, ContainIsCentredOnBlack) {
  const Image image = fit_to_canvas(pattern(40, 20), 64, 64, Fit::contain);  // 64x32 in the middle
  ASSERT_EQ(image.rgb.size(), 64u * 64 * 3);
  const Image scaled = resize_lanczos(pattern(40, 20), 64, 32);
  EXPECT_TRUE(std::equal(scaled.rgb.begin(), scaled.rgb.end(), image.rgb.begin() + 16 * 64 * 3));
  const auto black = [](uint8_t v) { return v == 0; };
  EXPECT_TRUE(std::all_of(image.rgb.begin(), image.rgb.begin() + 16 * 64 * 3, black));
  EXPECT_TRUE(std::all_of(image.rgb.end() - 16 * 64 * 3, image.rgb.end(), black));
  EXPECT_EQ(fit_to_canvas(pattern(64, 64), 64, 64, Fit::contain).rgb, pattern(64, 64).rgb);
  EXPECT_EQ(fit_to_canvas(pattern(3000, 1), 32, 32, Fit::contain).rgb.size(), 32u * 32 * 3);
}

TEST(Image, FramesRoundHalfToEvenAndClamp) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // Two frames of 2x1; the second is asked for. 0.5 / 255 and 2.5 / 255 are ties up to f32.
  const float planes[3 * 2 * 2] = {9, 9, 0.5f, 1, 9, 9, -1, 2, 9, 9, nan, 2.0f / 255};
  EXPECT_EQ(frame_image(planes, 2, 1, 2, 1).rgb, (std::vector<uint8_t>{128, 0, 0, 255, 255, 2}));
}

TEST(Image, OrientationsAreTheExifOnes) {
  // a b c
  // d e f, one byte per pixel shown in the red channel.
  std::vector<uint8_t> rgb;
  for (const char c : std::string("abcdef")) rgb.insert(rgb.end(), {static_cast<uint8_t>(c), 0, 0});
  const char* want[9] = {"", "abcdef", "cbafed", "fedcba", "defabc", "adbecf", "daebfc", "fcebda", "cfbead"};
  for (int orientation = 1; orientation <= 8; ++orientation) {
    int width = 3, height = 2;
    const std::vector<uint8_t> out = apply_orientation(rgb, &width, &height, orientation);
    std::string red;
    for (size_t i = 0; i < out.size(); i += 3) red += static_cast<char>(out[i]);
    EXPECT_EQ(red, want[orientation]) << orientation;
    EXPECT_EQ(width, orientation >= 5 ? 2 : 3);
  }
}

TEST(Image, ExifBlocksThatLieAreIgnored) {
  std::vector<uint8_t> exif = {'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, 6, 0, 0, 0};
  EXPECT_EQ(exif_orientation(exif), 6);
  for (size_t cut = 0; cut < exif.size(); ++cut) EXPECT_EQ(exif_orientation(std::span(exif).first(cut)), 1) << cut;
  exif[18] = 9;
  EXPECT_EQ(exif_orientation(exif), 1);
  exif[4] = exif[5] = exif[6] = exif[7] = 0xff;
  EXPECT_EQ(exif_orientation(exif), 1);
}

TEST(Image, WrittenPngIsWhole) {
  const TempFolder folder;
  const Image image = pattern(301, 97);
  write_png(folder / "a.png", image);
  const std::vector<uint8_t> bytes = file_bytes(folder / "a.png");
  const ImageHeader header = probe_image(bytes, "a.png");
  EXPECT_EQ(header.width, 301);
  EXPECT_EQ(header.height, 97);
  EXPECT_EQ(folder.list(), std::vector<std::string>{"a.png"});
  for (size_t cut = 0; cut < bytes.size(); cut += 1 + cut / 3) {
    EXPECT_THROW(probe_image(std::span(bytes).first(cut), "a.png"), Error) << cut;
  }
  EXPECT_TRUE(contains(error_of([&] { write_png(folder / "none/a.png", image); }, Code::io), "does not exist"));
}

#if H3_HAVE_FFMPEG
TEST(Image, EveryPngDepthIsExact) {
  const TempFolder folder;
  const int width = 52, height = 16;
  for (const char* format : {"rgb24", "rgba", "rgb48be", "rgba64be", "gray", "ya8", "gray16be", "ya16be"}) {
    write_bytes(folder / "a.png", encode_still("png", format, width, height));
    const Image image = read_image(folder / "a.png");
    ASSERT_EQ(image.rgb.size(), static_cast<size_t>(width * height * 3)) << format;
    const std::string name = format;
    const bool grey = name.find("gray") == 0 || name.find("ya") == 0;
    const bool deep = contains(name, "16") || contains(name, "48") || contains(name, "64");
    const bool alpha = contains(name, "ya") || contains(name, "rgba");
    EXPECT_EQ(image.warnings.size(), static_cast<size_t>(deep + alpha)) << format;
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        const uint8_t* rgb = image.rgb.data() + (y * width + x) * 3;
        const int a = alpha && x >= width / 2 ? 64 : 255, want[3] = {5 * x, 17 * y, 128};
        for (int c = 0; c < 3 && !grey; ++c)
          ASSERT_EQ(rgb[c], (want[c] * a + 127) / 255) << format << " " << x << "," << y;
        if (grey) {
          ASSERT_EQ(rgb[0], rgb[1]);
          ASSERT_EQ(rgb[0], rgb[2]);
        }
      }
    }
  }
  write_bytes(folder / "p.png", encode_still("png", "pal8", 8, 2));
  const Image palette = read_image(folder / "p.png");
  EXPECT_EQ(std::vector<uint8_t>(palette.rgb.begin(), palette.rgb.begin() + 3), (std::vector<uint8_t>{255, 0, 0}));
  EXPECT_EQ(std::vector<uint8_t>(palette.rgb.end() - 3, palette.rgb.end()), (std::vector<uint8_t>{0, 128, 0}));
  ASSERT_EQ(palette.warnings.size(), 1u);
  EXPECT_TRUE(contains(palette.warnings[0], "alpha"));
  write_bytes(folder / "b.png", encode_still("png", "monob", 16, 16));
  for (const uint8_t v : read_image(folder / "b.png").rgb) EXPECT_TRUE(v == 0 || v == 255);
}

TEST(Image, PngWrittenIsPngRead) {
  const TempFolder folder;
  const Image image = pattern(301, 97);
  write_png(folder / "a.png", image);
  EXPECT_EQ(read_image(folder / "a.png").rgb, image.rgb);
}

TEST(Image, JpegSamplingsAndWebp) {
  const TempFolder folder;
  for (const char* format : {"yuvj444p", "yuvj422p", "yuvj420p"}) {
    write_bytes(folder / "a.jpg", encode_still("mjpeg", format, 52, 18));
    const Image image = read_image(folder / "a.jpg");
    ASSERT_EQ(image.rgb.size(), 52u * 18 * 3);
    EXPECT_TRUE(image.warnings.empty());
    double worst = 0;
    for (int y = 0; y < 18; ++y) {
      for (int x = 0; x < 52; ++x) {
        const uint8_t* rgb = image.rgb.data() + (y * 52 + x) * 3;
        worst = std::max({worst, std::abs(rgb[0] - 5.0 * x), std::abs(rgb[1] - 15.0 * y), std::abs(rgb[2] - 128.0)});
      }
    }
    EXPECT_LT(worst, 14) << format;  // the encoder's own loss; a wrong matrix or siting is far outside
  }
  const std::vector<uint8_t> webp = encode_still("libwebp", "yuva420p", 64, 32);
  if (webp.empty()) GTEST_SKIP() << "this FFmpeg has no WebP encoder";
  write_bytes(folder / "a.webp", webp);
  const Image image = read_image(folder / "a.webp");
  ASSERT_EQ(image.rgb.size(), 64u * 32 * 3);
  ASSERT_EQ(image.warnings.size(), 1u);
  EXPECT_NEAR(image.rgb[(16 * 64 + 16) * 3 + 2], 128, 14);
  EXPECT_NEAR(image.rgb[(16 * 64 + 48) * 3 + 2], 32, 10);  // on black
}

TEST(Image, JpegRotationFollowsExif) {
  const TempFolder folder;
  for (const bool big : {false, true}) {
    for (int orientation = 1; orientation <= 8; ++orientation) {
      write_bytes(folder / "a.jpg", jpeg_with_orientation(orientation, 52, 18, big));
      const Image image = read_image(folder / "a.jpg");
      ASSERT_EQ(image.width, orientation >= 5 ? 18 : 52) << orientation;
      ASSERT_EQ(image.height, orientation >= 5 ? 52 : 18);
      // The stored corner with red 0 and green 0, where it must be displayed.
      const bool right = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
      const bool low = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
      const int x = right ? image.width - 1 : 0, y = low ? image.height - 1 : 0;
      const uint8_t* rgb = image.rgb.data() + (y * image.width + x) * 3;
      EXPECT_LT(rgb[0] + rgb[1], 40) << orientation;
    }
  }
}

// Every prefix is an error, never a partly decoded picture; flipped bytes are an error or a picture, never a crash.
TEST(Image, TruncatedAndDamagedFiles) {
  const TempFolder folder;
  const std::pair<const char*, std::vector<uint8_t>> files[] = {{"png", encode_still("png", "rgba", 40, 24)},
                                                                {"jpg", jpeg_with_orientation(6, 40, 24, true)},
                                                                {"webp", encode_still("libwebp", "yuva420p", 40, 24)}};
  for (const auto& [kind, bytes] : files) {
    const std::string path = folder / (std::string("a.") + kind);
    for (size_t cut = 1; cut < bytes.size(); cut += 1 + bytes.size() / 60) {
      write_bytes(path, {bytes.begin(), bytes.begin() + static_cast<int64_t>(cut)});
      const std::string text = error_reading(path);
      EXPECT_TRUE(cut <= 40 || contains(text, "truncated")) << kind << " " << cut << ": " << text;
    }
    uint32_t state = 1;
    for (int round = 0; round < 120; ++round) {
      std::vector<uint8_t> damaged = bytes;
      for (int flips = 0; flips < 3; ++flips) {
        state = state * 1664525u + 1013904223u;
        damaged[(state >> 8) % damaged.size()] ^= static_cast<uint8_t>(1u << (state >> 29));
      }
      write_bytes(path, damaged);
      try {
        EXPECT_FALSE(read_image(path).rgb.empty());
      } catch (const Error& error) {
        EXPECT_TRUE(contains(error.what(), path)) << error.what();
        EXPECT_FALSE(contains(error.what(), "\n"));
      }
    }
  }
}

TEST(Image, ClaimedSizesAreRefusedBeforeAnythingIsAllocated) {
  const TempFolder folder;
  std::vector<uint8_t> png = encode_still("png", "rgb24", 8, 8);
  for (int i = 0; i < 4; ++i) png[16 + i] = static_cast<uint8_t>(60000 >> (24 - 8 * i));  // width
  const uint32_t crc = crc32_update(0, png.data() + 12, 17);
  for (int i = 0; i < 4; ++i) png[29 + i] = static_cast<uint8_t>(crc >> (24 - 8 * i));
  write_bytes(folder / "bomb.png", png);
  EXPECT_TRUE(contains(error_reading(folder / "bomb.png"), "60000x8"));
}
#endif

}  // namespace
}  // namespace h3
