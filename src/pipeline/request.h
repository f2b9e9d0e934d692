// What a user asks for, before and after validation. Every front end (command line, server, tests) goes through resolve().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace h3 {

// As given: unset fields are defaulted from the model.
struct Request {
  std::string prompt;
  std::string prompt_embeds;                      // safetensors of a previous --dump text=FILE
  std::optional<int> width, height, short_edge, frames, steps;
  std::optional<double> seconds;
  std::string aspect;                             // "16:9"
  bool exact = false;                             // trim picture and sound to the asked length
  int64_t seed = 42;                              // -1 draws one and reports it
  std::string first_frame, last_frame, fit;       // fit: stretch | cover | contain
  std::string sampler, scheduler, preset = "exact", profile = "diffusers";
  std::optional<double> video_shift, audio_shift;
  bool stock_sampler = false;
  std::string precision = "f32", vae_precision = "f32";
  std::string output, wav, frames_dir, report;
  bool no_audio = false;
  int quality = 18;
  std::vector<std::pair<std::string, std::string>> dumps;  // STAGE=FILE
};

}  // namespace h3
