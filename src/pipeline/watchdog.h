// Looks at what a run produced and says when it is probably not what anybody wanted. NaN and Inf fail the job; the
// other checks warn. Thresholds are starting values (see docs/architecture.md) and are reported with every verdict.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/vae/video_vae.h"

namespace h3 {

struct Finding {
  std::string check;  // "silence", "clipping", "dc_offset", "black", "frozen", "tile_grid"
  double value = 0, limit = 0;
  bool ok = true;
  std::string text;  // for the user; set when not ok
  Json to_json() const;
};

// Error(numeric) naming stage, step (from 1; 0 = the stage has no steps), tensor and the first bad element.
void require_finite(const char* stage, int step, int steps, const char* what, std::span<const float> values);

class Watchdog {
 public:
  // Seams of the tile plan of the decoder, for the grid check; a clip of one tile has none.
  Watchdog(int width, int height);

  // planar [3, frames, height, width] in 0..1, in order. Error(numeric) on NaN or Inf.
  void add_frames(const float* rgb, int frames);
  // [channels, count] in -1..1.
  void set_audio(const float* samples, int channels, int64_t count);
  std::vector<Finding> findings() const;

 private:
  void add_luma(const float* rgb, int64_t frame_stride, std::vector<float>& luma) const;
  void add_gradients(const std::vector<float>& luma);

  int width_, height_;
  std::vector<char> seam_column_, seam_row_;  // 1 where a tile begins or a blend ends between index - 1 and index
  bool tiled_ = false;
  int64_t frames_ = 0, dark_frames_ = 0;
  double difference_sum_ = 0;  // of mean absolute luma differences between neighbours
  double seam_gradient_ = 0, other_gradient_ = 0;
  int64_t seam_count_ = 0, other_count_ = 0;
  std::vector<float> last_luma_;
  bool has_audio_ = false;
  double audio_mean_ = 0, audio_rms_ = 0, audio_full_ = 0;  // worst |channel mean|, rms over all, share at full scale
};

}  // namespace h3
