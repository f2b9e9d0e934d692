// The packed sequence: which rows there are, where they stand in time and space, and which time each row reads
// (spec dit 3, 4). Host only, immutable once built.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sampling/rows.h"

namespace h3 {

// ---- geometry (spec dit 4) ----
inline constexpr int kFramesPerSecond = 24;
inline constexpr int kCanvasStep = 32;    // pixels per row of the packed sequence, each way
inline constexpr int kLatentPixels = 16;  // pixels per latent, each way

int align_frames(int frames);   // up to 17k + 5, at least 5
int latent_frames(int frames);  // 5 (frames - 5) / 17 + 2, for aligned frames
int audio_latents(int frames);  // round(frames / 24 * 40), per stereo channel
struct Canvas {
  int width = 0, height = 0;
};
// The canvas of an aspect ratio: short edge first, then the area limit, then rounded to multiples of 32.
// Error(usage) outside 1:4 ... 4:1.
Canvas canvas_for_aspect(double width, double height, int short_edge = 768, int64_t max_pixels = 768 * 1344);

// The slot of the 24 fps clock from which source frame `index` is shown: floor(index 24/fps + 1/2), as the reference
// has it for constant rates. Frames of variable rates go by their own time; containers round times to milliseconds, so
// a time that close to the nominal one is the nominal one.
int64_t frame_slot(int64_t index, double time, double fps);

// Which source frame stands in each slot of the 24 fps clock: frame i holds from its slot to its successor's. At most
// `most` slots: what lies beyond the target's length is cut.
std::vector<int> resample_frames(double fps, int frames, int most);

// Half to even, as the reference rounds geometry.
int64_t round_half_even(double value);

// ---- the packed sequence ----
enum class Tag : int32_t { video = 0, text = 1, audio = 2 };

struct LayoutBlock {
  enum class Kind : uint8_t { first_frame, last_frame, image, video, audio } kind = Kind::image;
  int latent_frames = 0, latent_height = 0, latent_width = 0;  // visual part; 0 for audio
  int audio_latents = 0;                                       // audio or a video's soundtrack
};

struct LayoutSpec {
  std::vector<int32_t> text_tags;                              // [Nt] 1 = text, 0 = vision block
  std::vector<LayoutBlock> blocks;                             // conditions, in packed order
  int latent_frames = 0, latent_height = 0, latent_width = 0;  // target video
  int audio_latents = 0;                                       // target sound, per channel
};

// [text][condition blocks][target sound][target video], so what a request keeps fixed is one run of rows.
struct PackedLayout {
  LayoutSpec spec;
  int64_t rows = 0;                                        // S
  std::vector<double> position;                            // [S, 3] time, height, width
  std::vector<int32_t> tags;                               // [S]
  std::vector<int64_t> video_rows, audio_rows, text_rows;  // indices into the packed sequence; conditions first
  int64_t condition_video_rows = 0, condition_audio_rows = 0;

  int64_t text_count() const { return static_cast<int64_t>(text_rows.size()); }
  int64_t target_audio_rows() const { return static_cast<int64_t>(audio_rows.size()) - condition_audio_rows; }
  int64_t target_video_rows() const { return static_cast<int64_t>(video_rows.size()) - condition_video_rows; }
  int64_t first_target() const {
    return rows - target_audio_rows() - target_video_rows();
  }  // text and conditions before
};

PackedLayout build_layout(const LayoutSpec& spec);

// What a row takes its time from (spec dit 3.3), and the times of one evaluation by it.
enum class TimeSource : uint8_t { video, audio, condition, reference_sound };
inline constexpr size_t kTimeSources = 4;
std::vector<TimeSource> time_sources(const PackedLayout& layout);  // [S]
std::array<float, kTimeSources> source_times(float video_time, float audio_time);

// Distinct times of one evaluation, ascending, and each row's index into them (spec dit 3.3).
struct RowTimes {
  std::vector<float> times;
  std::vector<int32_t> index;  // [S]
};
RowTimes row_times(const PackedLayout& layout, float video_time, float audio_time);

}  // namespace h3
