// From a prompt and media to token ids, modality tags and rotary positions (spec conditioner 3, 6.3).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/text/picture.h"
#include "model/text/pixels.h"
#include "model/text/tokenizer.h"

namespace h3 {

// What the language model reads, row by row.
struct Presentation {
  std::vector<int32_t> ids;
  std::vector<int32_t> tags;        // 1 = text, 0 = vision block, both markers included
  std::vector<VisionInput> vision;  // any order; within a modality in order of appearance
};

// One maximal run of pad tokens: the rows that one picture or one temporal block of a video replaces.
struct VisionRun {
  int64_t row = 0, count = 0;     // rows of the presentation
  int64_t height = 0, width = 0;  // merged grid; count = height * width
  int64_t feature = 0;            // first row of its features, all of `vision` concatenated in order
};

// Positions that the language model was trained for (config.json of Qwen3-VL: max_position_embeddings).
inline constexpr int64_t kMostTokens = 262144;

// Segments are tokenised one by one. Error(usage) for an empty prompt, a literal pad token in it, a video of fewer than
// 13 frames, or more than `max_tokens` rows.
Presentation present(const Tokenizer& tokenizer, const std::string& prompt, const std::vector<PromptMedia>& media,
                     int64_t max_tokens = kMostTokens);

// Rows of the presentation before those of the prompt, from the sizes of the media alone: pixels are not looked at.
int64_t media_rows(const Tokenizer& tokenizer, const std::vector<PromptMedia>& media);

// What stands before each vision block or sound, for linters and tests: "<Picture 1>: ", "<0.2 seconds>".
std::string picture_label(int ordinal);
std::string audio_label(int ordinal);
std::string video_label(int ordinal);
// Indices of the frames of a 24 fps clip that the conditioner sees: 0, 12, 24, ...
std::vector<int64_t> conditioner_frames(int64_t frames);
// One label per temporal block: "<k.2 seconds>", or "<k.0 seconds>" for a last frame paired with itself.
std::vector<std::string> block_labels(int64_t sampled_frames);

// Finds the runs and ties them to their features. Error(data) when the pads do not match the vision inputs.
std::vector<VisionRun> find_vision_runs(const std::vector<int32_t>& ids, const Tokenizer::Special& special,
                                        const std::vector<VisionInput>& vision);

// Position ids of the three rotary axes: [3][rows] = T, H, W.
std::vector<std::vector<int32_t>> rotary_positions(int64_t rows, const std::vector<VisionRun>& runs);

}  // namespace h3
