// The packed sequence: which rows there are, where they stand in time and space, and which time each row reads (dit.md 3).
// Host only, immutable once built.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace h3 {

// ---- geometry (dit.md 4) ----
int align_frames(int frames);                     // up to 17k + 5, at least 5
int latent_frames(int frames);                    // 5 (frames - 5) / 17 + 2
int audio_latents(int frames);                    // round(frames / 24 * 40)
struct Canvas { int width = 0, height = 0; };
Canvas canvas_for_aspect(double width, double height, int short_edge = 768, int64_t max_pixels = 768 * 1344);

struct LayoutBlock {
  enum class Kind : uint8_t { first_frame, last_frame, image, video, audio } kind = Kind::image;
  int latent_frames = 0, latent_height = 0, latent_width = 0;  // visual part; 0 for audio
  int audio_latents = 0;                                       // audio or a video's soundtrack
};

struct LayoutSpec {
  std::vector<int32_t> text_tags;      // [Nt]
  std::vector<LayoutBlock> blocks;     // conditions, in packed order
  int latent_frames = 0, latent_height = 0, latent_width = 0;  // target video
  int audio_latents = 0;                                       // target sound, per channel
};

struct PackedLayout {
  LayoutSpec spec;
  int64_t rows = 0;                          // S
  std::vector<double> position;              // [S, 3]
  std::vector<int32_t> tags;                 // [S]
  std::vector<int64_t> video_rows, audio_rows, text_rows;  // indices into the packed sequence; conditions first
  int64_t condition_video_rows = 0, condition_audio_rows = 0;
};

PackedLayout build_layout(const LayoutSpec& spec);

// Distinct times of one evaluation, ascending, and each row's index into them (dit.md 3.3).
struct RowTimes {
  std::vector<float> times;
  std::vector<int32_t> index;  // [S]
};
RowTimes row_times(const PackedLayout& layout, float video_time, float audio_time);

// Latents z[C, T, h, w] <-> rows [T (h/2)(w/2), 4 C] (dit.md 3.1).
std::vector<float> patchify(const float* latent, int channels, int frames, int height, int width);
std::vector<float> unpatchify(const float* rows, int channels, int frames, int height, int width);

}  // namespace h3
