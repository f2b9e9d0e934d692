// Dimensions of a denoiser, read from the shapes of its tensors.
#pragma once

#include <cstdint>

namespace h3 {

struct DitConfig {
  int64_t hidden = 0, layers = 0, refiner_layers = 0, heads = 0, head_dim = 0, ffn = 0;
  int64_t video_row = 0, audio_row = 0, text_dim = 0;   // widths of rows: 4 x 24, 32, 5120 in the release
  int64_t freq_dim = 0, time_hidden = 0, time_dim = 0;  // time embedder; 0 when there is only a curve
  int64_t curve_points = 0, curve_rank = 0;             // pruned AdaLN; 0 = the full one
  int64_t rope_pairs = 0;                               // rotated pairs per axis: 16
  float norm_eps = 1e-5f, qk_norm_eps = 1e-5f, final_norm_eps = 1e-5f;

  int64_t inner() const { return heads * head_dim; }
  int64_t video_channels() const { return video_row / 4; }
};

}  // namespace h3
