// One file from loose ones, or from another: what `h3 pack` does.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apps/pack/policy.h"
#include "base/control.h"
#include "base/json.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "quant/encode.h"
#include "store/model_files.h"

namespace h3 {

// What a CMF is made to leave out.
struct PackParts {
  bool dit = true, conditioner = true, vision = true, video_decoder = true, video_encoder = true, audio_decoder = true,
       audio_encoder = true;
};

// How AdaLN is stored: as the projections of the time embedding, or as curves over time (spec dit 9). `automatic`
// keeps the projections in f32 packs, whose use is exactness, and makes curves of rank 8 otherwise.
enum class AdalnForm : uint8_t { automatic, full, curve };

struct PackOptions {
  OpenOptions inputs;  // roles given twice: the later file wins
  std::string output;  // FILE.safetensors: the transformer alone, as ComfyUI's files hold it; else a CMF
  QuantPolicy policy;
  int te_layers = 0;  // 0 = the tap of the model
  PackParts parts;
  AdalnForm adaln = AdalnForm::automatic;
  bool check_velocity = false;                          // report how far the packed transformer's velocities lie
  bool check_adaln = false;                             // report the spectrum and the error of curves that are made
  std::vector<std::pair<std::string, float>> adapters;  // merged before anything is rounded: file, strength
};

// What a pack did to one family of tensors.
struct FamilyReport {
  std::map<std::string, int64_t> formats;  // tensors by format
  int64_t tensors = 0, copied = 0;         // copied: the same bytes as in the input
  uint64_t bytes = 0;
  ErrorStats error;  // of decoded weights against the given ones
};

struct PackReport {
  std::map<std::string, FamilyReport> families;  // "dit.mlp"
  uint64_t bytes = 0;                            // of the file
  int64_t tensors = 0;
  std::vector<std::string> notes;
  std::string to_text() const;
  Json to_json() const;
};

// Streams tensor by tensor; memory is that of the largest packed tensor. The output appears when it is complete.
PackReport pack_model(const PackOptions& options, ThreadPool& pool, Log& log, const Control& control);

// Weights of release size made by hash instead of read: to measure what a pack takes. `small_encoder`: with a 4B
// conditioner and its ClipProj instead of the 32B one. layers: of every component, 0 = all.
PackReport pack_random(int layers, bool small_encoder, const PackOptions& options, ThreadPool& pool, Log& log,
                       const Control& control);

// The same from files that are open already.
PackReport pack_files(const ModelFiles& files, const PackOptions& options, ThreadPool& pool, Log& log,
                      const Control& control);

}  // namespace h3
