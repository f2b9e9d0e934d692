// The rules against the scores that came with the reference runs of the demo model.
#include <gtest/gtest.h>

#include "base/file_map.h"
#include "bench/eval.h"
#include "pipeline/stage_sink.h"
#include "store/tensor_source.h"

namespace h3 {
namespace {

const std::string kFolder = std::string(H3_SOURCE_DIR) + "/tests/data/demo_reference/";

Json json_file(const std::string& path) { return Json::parse(read_file(path), path); }

EvalClip reference_clip(const std::string& name) {
  const std::unique_ptr<TensorSource> source = open_safetensors(kFolder + name + ".safetensors");
  const auto number = [&](const char* key) { return std::stoi(source->metadata().at(key)); };
  EvalClip clip;
  clip.width = number("width");
  clip.height = number("height");
  const Image strip = read_image(kFolder + name + "_frames.png");
  const size_t bytes = size_t{3} * static_cast<size_t>(clip.width) * static_cast<size_t>(clip.height);
  for (int i = 0; i < number("frames"); ++i) {
    const auto first = strip.rgb.begin() + static_cast<std::ptrdiff_t>(bytes) * i;
    clip.frames.emplace_back(first, first + static_cast<std::ptrdiff_t>(bytes));
  }
  const TensorInfo* const audio = source->find("audio");
  const float* const samples = reinterpret_cast<const float*>(audio->data.data());
  const int64_t count = audio->dims[1];
  clip.left.assign(samples, samples + count);
  clip.right.assign(samples + count, samples + 2 * count);
  return clip;
}

TEST(EvalRules, ReferenceRunsScoreAsRecorded) {
  const Json eval = json_file(std::string(H3_SOURCE_DIR) + "/models/demo/eval.json");
  const EvalRules rules = EvalRules::from_json(eval);
  const Json references = json_file(kFolder + "references.json");
  int runs = 0;
  for (const Json& reference : references.items()) {
    const std::string name = reference.at("file").as_string();
    SCOPED_TRACE(name);
    const Json& prompt = eval.at("prompts").at(static_cast<size_t>(reference.at("eval_index").as_int()));
    const EvalExpectation expect = EvalExpectation::from_json(prompt.at("expect"));
    const EvalScore score = score_clip(rules, expect, reference_clip(name));
    for (const auto& [check, value] : reference.at("score").members()) {
      ASSERT_TRUE(score.checks.contains(check)) << check;
      EXPECT_NEAR(score.checks.at(check), value.as_double(), 1e-9) << check;
    }
    EXPECT_EQ(score.checks.size(), reference.at("score").size());
    const Json& info = reference.at("info");
    EXPECT_NEAR(score.rms, info.at("rms").as_double(), 1e-6);
    if (const Json* error = info.find("pan_mae")) {
      EXPECT_NEAR(score.pan_error, error->as_double(), 1e-4);
    }
    const auto same_times = [&](const char* key, const std::vector<double>& got) {
      const Json* const want = info.find(key);
      if (want == nullptr) return;
      ASSERT_EQ(got.size(), want->size()) << key;
      for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want->at(i).as_double(), 6e-4) << key;
    };
    same_times("video_events", score.video_events);
    same_times("audio_onsets", score.onsets);
    ++runs;
  }
  EXPECT_GT(runs, 0);
}

}  // namespace
}  // namespace h3
