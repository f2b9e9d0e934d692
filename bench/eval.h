// Does the demo model follow its prompts? Analytic rules over pictures and sound, as models/demo/eval.json states them:
// its palettes and prompts come from the file, the thresholds from its "rules".
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "media/media.h"
#include "pipeline/session.h"

namespace h3 {

struct EvalClip {
  int width = 0, height = 0;
  std::vector<std::vector<uint8_t>> frames;  // RGB, [height, width, 3]
  std::vector<float> left, right;            // 32 kHz
};

// Named entries of eval.json: colours in RGB, pitches in Hz.
struct EvalRules {
  std::vector<std::pair<std::string, std::vector<double>>> palette, background;
  std::vector<std::pair<std::string, double>> pitch;
  static EvalRules from_json(const Json& file);
};

struct EvalExpectation {
  std::string color, shape, background, motion, size;
  std::string color_right, shape_right;  // two objects, when set
  bool silent = false;
  std::optional<Image> first, last;  // keyframes
  static EvalExpectation from_json(const Json& expect);
};

struct EvalScore {
  std::map<std::string, double> checks;      // 0..1 each
  double rms = 0, pan_error = -1;            // pan_error: mean |pan - x / W|, -1 when not scored
  std::vector<double> video_events, onsets;  // seconds
  double mean() const;
};

EvalScore score_clip(const EvalRules& rules, const EvalExpectation& expect, const EvalClip& clip);

// ---- rendering the prompts ----
struct EvalOptions {
  std::string file;             // "" = the eval.json embedded with the demo model
  std::vector<int> prompts;     // indices; empty = all
  std::vector<uint64_t> seeds;  // empty = as the file says
  Request request;              // steps, precision ...; prompt, size, frames, seed and keyframes come from the file
};

struct EvalRow {
  int index = 0;
  uint64_t seed = 0;
  std::string prompt, skipped;  // skipped: why it was not rendered
  EvalScore score;
  double seconds = 0;
  int run = 0, reused = 0, forecast = 0;  // evaluations, by what a step policy made of them
};

struct EvalResult {
  std::vector<EvalRow> rows;
  double overall = 0;  // mean over prompts of the mean over seeds of the mean of the checks
  int evaluations = 0;
  std::optional<double> recorded;  // what the file says of as many evaluations, when every prompt and seed of it ran
  Json to_json() const;
};

EvalResult run_eval(Session& session, const EvalOptions& options, const Control& control,
                    const std::function<void(const EvalRow&)>& on_row);

}  // namespace h3
