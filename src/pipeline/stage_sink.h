// Intermediate results, for --dump, for parity and for anybody who wants the frames without a file.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pipeline/request.h"

namespace h3 {

// Exactly one of the three vectors holds the values.
struct StageTensor {
  std::string name;
  std::vector<int64_t> dims;
  std::vector<float> f32;
  std::vector<int32_t> i32;
  std::vector<uint8_t> u8;
};

struct StageResult {
  std::string stage;  // one of dump_stages()
  std::vector<StageTensor> tensors;
  std::map<std::string, std::string> metadata;
};

struct StageSink {
  // Which stages are wanted; nothing is collected for the others.
  std::function<bool(const std::string& stage)> wants;
  std::function<void(const StageResult& result)> take;
};

// Writes the stages of request.dumps as safetensors; the names of the tensors are those of docs/dumps in the manual:
// prompt_embeds, text_token_tags, token_ids · keyframe_u8.i, reference_u8.i, condition_latent.i,
// audio_condition_rows.i · condition_noise.i, video_noise, audio_noise_rows · video_rows_after_step.i,
// audio_rows_after_step.i · video_velocity.i, audio_velocity.i · latents, audio_latents · frames · audio.
void write_stage(const std::string& path, const StageResult& result);

double rms(const std::vector<float>& values);  // 0 without any

// What --dump text=FILE wrote, or any file with prompt_embeds [rows, width] and, for keyframes, text_token_tags [rows].
struct SavedText {
  int64_t rows = 0, width = 0;
  std::vector<float> embeds;
  std::vector<int32_t> tags, ids;
};
SavedText read_saved_text(const std::string& path);
int64_t saved_text_rows(const std::string& path);  // without reading the values

}  // namespace h3
