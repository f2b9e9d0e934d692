// h3 compare on results that differ by known amounts.
#include <cmath>

#include "base/json.h"
#include "tests/cli/program.h"

namespace h3 {
namespace {

class CompareCommand : public ProgramTest {
 protected:
  Json compared(const std::string& a, const std::string& b) const {
    const Outcome outcome = run({"compare", a, b, "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out, "compare");
  }
  // A grey clip of 32x32 pixels; frame `bright` is `step` levels brighter.
  void put_clip(const std::string& name, int frames, int bright = -1, int step = 0) const {
    std::string bytes = "YUV4MPEG2 W32 H32 F24:1 Ip A1:1 C420jpeg\n";
    for (int f = 0; f < frames; ++f) {
      bytes += "FRAME\n" + std::string(32 * 32, static_cast<char>(100 + (f == bright ? step : 0)));
      bytes += std::string(2 * 16 * 16, '\x80');
    }
    write(name, bytes);
  }
};

TEST_F(CompareCommand, ClipsByPixels) {
  put_clip("a.y4m", 4);
  put_clip("same.y4m", 4);
  put_clip("b.y4m", 4, 2, 10);
  EXPECT_TRUE(compared("a.y4m", "same.y4m").at("identical").as_bool());
  const Json json = compared("a.y4m", "b.y4m");
  EXPECT_FALSE(json.at("identical").as_bool());
  const Json& clip = json.at("clip");
  EXPECT_EQ(clip.at("first_difference").as_int(), 2);
  EXPECT_EQ(clip.at("worst_frame").as_int(), 2);
  // 10 levels in one frame of four; luma to RGB is one to one, give or take a rounding.
  EXPECT_NEAR(clip.at("psnr").as_double(), 20 * std::log10(255.0 / (10 / std::sqrt(4.0))), 1);
  EXPECT_NEAR(clip.at("psnr_worst").as_double(), 20 * std::log10(255.0 / 10), 1);
  const Outcome text = run({"compare", "a.y4m", "b.y4m"});
  EXPECT_NE(text.out.find("PSNR"), std::string::npos) << text.out;
}

TEST_F(CompareCommand, LatentsNameTheFirstStepThatDiffers) {
  run(quick({"--steps", "3", "--dump", "latents=a.safetensors", "--dump", "text=text.safetensors"}));
  run(quick({"--steps", "3", "--dump", "latents=b.safetensors", "--prompt-embeds", "text.safetensors"}));
  run(quick({"--steps", "3", "--dump", "latents=c.safetensors", "--precision", "bf16"}));
  EXPECT_TRUE(compared("b.safetensors", "a.safetensors").at("identical").as_bool());
  const Json near = compared("c.safetensors", "a.safetensors");
  EXPECT_FALSE(near.at("identical").as_bool());
  const Json& series = near.at("series").at(0);
  EXPECT_EQ(series.at("first_difference").as_int(), 0);
  EXPECT_GT(series.at("rel_l2_last").as_double(), 1e-5);
  EXPECT_LT(series.at("rel_l2_last").as_double(), 0.1);
}

TEST_F(CompareCommand, WhatCannotBeComparedIsNamed) {
  put_clip("a.y4m", 1);
  write("wide.y4m", "YUV4MPEG2 W64 H32 F24:1 Ip A1:1 C420jpeg\nFRAME\n" + std::string(64 * 32 * 3 / 2, '\x80'));
  expect_refused({"compare", "a.y4m"}, 2, {"two paths"});
  expect_refused({"compare", "a.y4m", "none.y4m"}, 1, {"none.y4m"});
  expect_refused({"compare", "a.y4m", "wide.y4m"}, 2, {"32x32", "64x32"});
}

}  // namespace
}  // namespace h3
