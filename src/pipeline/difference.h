// How far two results lie apart: clips, tensor files (latents, embeddings, any --dump), or folders of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace h3 {

// One tensor that both sides have.
struct TensorDifference {
  std::string file, name;  // file: within a folder; empty otherwise
  std::string shape;
  bool same_shape = true, identical = false;
  int64_t count = 0, non_finite = 0;
  double rel_l2 = 0, max_abs = 0;  // |a - b| / |b|
  double cosine = 1;               // of the two as vectors
  // Of matrices of at least two rows (embeddings): cosines row by row. `floor` is the mean cosine of a row with the
  // next row of the other side: what unrelated rows reach, so that a mean can be read.
  bool by_row = false;
  double row_mean = 1, row_worst = 1, row_floor = 0;
  int64_t worst_row = 0;
};

// Of a series NAME.0, NAME.1, ... of a dump: where it starts to differ.
struct SeriesDifference {
  std::string file, name;
  int steps = 0;
  int first = -1;  // first step that is not identical; -1 = none
  double rel_l2_first = 0, rel_l2_last = 0;
};

struct ClipDifference {
  int width = 0, height = 0;
  int64_t frames = 0, frames_a = 0, frames_b = 0;  // compared; of each
  double psnr = 0, psnr_worst = 0;                 // dB over all pixels, of the worst frame; infinite = identical
  int64_t worst_frame = 0, first_frame = -1;       // first_frame: the first that differs; -1 = none
  double ssim = 1, ssim_worst = 1;                 // of luma, windows of 8x8
  bool sound = false;                              // both have sound at the same rate
  double audio_snr = 0;                            // dB, of b against a - b; infinite = identical
  int64_t samples = 0;
};

struct Difference {
  std::string kind;  // "clips", "tensors", "folders"
  bool identical = false;
  std::vector<TensorDifference> tensors;
  std::vector<SeriesDifference> series;
  std::vector<ClipDifference> clips;        // none or one
  std::vector<std::string> only_a, only_b;  // files or tensors without a partner

  Json to_json() const;
  std::string to_text() const;
};

// Both sides must be of one kind. Error(io | data | usage) naming the path; clips of different sizes are an error.
Difference compare_paths(const std::string& a, const std::string& b);

}  // namespace h3
