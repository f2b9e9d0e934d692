#include "model/dit/layout.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace h3 {
namespace {

constexpr double kFrameUnits = 5.0 / 3.0;  // clock units (1/40 s) per frame at 24 fps
constexpr int kSpan[5] = {1, 4, 4, 4, 4};  // frames a latent frame stands for, by its index modulo 5
constexpr float kConditionTime = 0.999f;   // visual conditions are never noisier than this
constexpr float kReferenceSoundTime = 1.0f;

// numpy's sum: eight interleaved accumulators up to 128 values, halves at a multiple of eight beyond.
double pairwise_sum(const double* values, int n) {
  if (n < 8) {
    double sum = 0;
    for (int i = 0; i < n; ++i) sum += values[i];
    return sum;
  }
  if (n > 128) {
    const int half = n / 2 - n / 2 % 8;
    return pairwise_sum(values, half) + pairwise_sum(values + half, n - half);
  }
  double r[8];
  for (int j = 0; j < 8; ++j) r[j] = values[j];
  int i = 8;
  for (; i < n - n % 8; i += 8) {
    for (int j = 0; j < 8; ++j) r[j] += values[i + j];
  }
  double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (; i < n; ++i) sum += values[i];
  return sum;
}

std::vector<double> spans_of(int frames) {
  std::vector<double> units;
  for (int k = 0; k < frames; ++k) units.push_back(kFrameUnits * kSpan[k % 5]);
  return units;
}

// Lengths of latent frames on the clock. The reference sums the target's with numpy and a reference video's with
// Python's compensated sum(); the last bit of f64 tells them apart.
double target_span(int frames) { return pairwise_sum(spans_of(frames).data(), frames); }

double reference_span(int frames) {
  double sum = 0, lost = 0;
  for (double unit : spans_of(frames)) {
    const double next = sum + unit;
    lost += std::fabs(sum) >= std::fabs(unit) ? (sum - next) + unit : (unit - next) + sum;
    sum = next;
  }
  return sum + lost;
}

// Coordinates of one axis of a latent frame (spec dit 3.4); delta is recomputed as the reference does.
std::vector<double> axis_coordinates(int extent, int height, int width) {
  const double ratio = extent / std::sqrt(static_cast<double>(height) * width);
  const double left = (1 - ratio) / 2;
  const int count = extent / 2;
  const double step = ((left + ratio) - left) / count;
  std::vector<double> out;
  for (int i = 0; i < count; ++i) out.push_back((i * step + left) * 32);
  return out;
}

class Builder {
 public:
  explicit Builder(const LayoutSpec& spec) {
    layout_.spec = spec;
    target_width_ = axis_coordinates(spec.latent_width, spec.latent_height, spec.latent_width);
    build_text();
    for (const LayoutBlock& block : spec.blocks) add_block(block);
    layout_.condition_video_rows = static_cast<int64_t>(layout_.video_rows.size());
    layout_.condition_audio_rows = static_cast<int64_t>(layout_.audio_rows.size());
    add_audio(spec.audio_latents, clock_, target_width_);
    add_video(spec.latent_frames, spec.latent_height, spec.latent_width, clock_);
  }

  PackedLayout take() { return std::move(layout_); }

 private:
  void add_row(std::vector<int64_t>& kind, Tag tag, double time, double height, double width) {
    kind.push_back(layout_.rows++);
    layout_.tags.push_back(static_cast<int32_t>(tag));
    layout_.position.insert(layout_.position.end(), {time, height, width});
  }

  void build_text() {
    for (int32_t tag : layout_.spec.text_tags) {
      add_row(layout_.text_rows, static_cast<Tag>(tag), static_cast<double>(layout_.rows), 0, 0);
    }
    clock_ = static_cast<double>(layout_.rows);
  }

  void add_audio(int latents, double origin, const std::vector<double>& width) {
    for (int side = 0; side < 2; ++side) {  // stereo channels stand at the two ends of the width axis
      const double x = side == 0 ? width.front() : width.back();
      for (int t = 0; t < latents; ++t) add_row(layout_.audio_rows, Tag::audio, origin + t, 0, x);
    }
  }

  void add_video(int frames, int height, int width, double origin) {
    const std::vector<double> down = axis_coordinates(height, height, width);
    const std::vector<double> across = axis_coordinates(width, height, width);
    double elapsed = 0;
    for (int k = 0; k < frames; ++k) {
      for (double y : down) {
        for (double x : across) add_row(layout_.video_rows, Tag::video, origin + elapsed, y, x);
      }
      elapsed += kFrameUnits * kSpan[k % 5];
    }
  }

  // Keyframes stand on the target's clock; references come before it and push it on.
  void add_block(const LayoutBlock& block) {
    using Kind = LayoutBlock::Kind;
    const int frames = block.latent_frames, height = block.latent_height, width = block.latent_width;
    switch (block.kind) {
      case Kind::first_frame: add_video(frames, height, width, clock_); break;
      case Kind::last_frame:
        add_video(frames, height, width, clock_ + target_span(layout_.spec.latent_frames) - kFrameUnits);
        break;
      case Kind::image:
        add_video(frames, height, width, clock_);
        clock_ += 1;
        break;
      case Kind::audio:
        add_audio(block.audio_latents, clock_, target_width_);
        clock_ += block.audio_latents;
        break;
      case Kind::video:
        add_audio(block.audio_latents, clock_, axis_coordinates(width, height, width));
        add_video(frames, height, width, clock_);
        clock_ += std::max(static_cast<double>(block.audio_latents), reference_span(frames));
        break;
    }
  }

  PackedLayout layout_;
  std::vector<double> target_width_;
  double clock_ = 0;
};

void check_extents(const char* what, int frames, int height, int width) {
  if (frames < 1 || height < 2 || width < 2 || height % 2 != 0 || width % 2 != 0) {
    fail(Code::usage, "%s: latent size %d x %d x %d; sides must be even and at least 2 (pixels in multiples of 32)",
         what, frames, height, width);
  }
}

}  // namespace

int64_t round_half_even(double value) { return std::llrint(value); }

int align_frames(int frames) {
  frames = std::max(frames, 5);
  while (frames % 17 != 5) ++frames;
  return frames;
}

int latent_frames(int frames) { return 5 * (frames - 5) / 17 + 2; }

int audio_latents(int frames) { return static_cast<int>(round_half_even(frames / 24.0 * 40.0)); }

int64_t frame_slot(int64_t index, double time, double fps) {
  constexpr double kRounding = 0.002;  // seconds
  const double nominal = static_cast<double>(index) / fps;
  const double slots = std::fabs(time - nominal) <= kRounding ? static_cast<double>(index) * kFramesPerSecond / fps
                                                              : time * kFramesPerSecond;
  return static_cast<int64_t>(std::floor(slots + 0.5));
}

std::vector<int> resample_frames(double fps, int frames, int most) {
  if (!(fps > 0)) fail(Code::usage, "a video at %g frames per second cannot be read", fps);
  const auto slot = [&](int i) { return std::min<int64_t>(most, frame_slot(i, i / fps, fps)); };
  std::vector<int> source;
  for (int i = 0; i < frames; ++i) source.insert(source.end(), static_cast<size_t>(slot(i + 1) - slot(i)), i);
  return source;
}

Canvas canvas_for_aspect(double width, double height, int short_edge, int64_t max_pixels) {
  const double ratio = width / height;
  if (!(ratio >= 0.25 && ratio <= 4)) {
    fail(Code::usage, "aspect %g:%g is outside 1:4 ... 4:1; choose --width and --height instead", width, height);
  }
  double w = ratio >= 1 ? short_edge * ratio : short_edge;
  double h = ratio >= 1 ? short_edge : short_edge / ratio;
  if (w * h > static_cast<double>(max_pixels)) {
    const double scale = std::sqrt(static_cast<double>(max_pixels) / (w * h));
    w *= scale;
    h *= scale;
  }
  const auto snap = [](double d) {
    return static_cast<int>(std::max<int64_t>(kCanvasStep, round_half_even(d / kCanvasStep) * kCanvasStep));
  };
  return {snap(w), snap(h)};
}

PackedLayout build_layout(const LayoutSpec& spec) {
  check_extents("target video", spec.latent_frames, spec.latent_height, spec.latent_width);
  for (const LayoutBlock& block : spec.blocks) {
    if (block.kind != LayoutBlock::Kind::audio) {
      check_extents("condition", block.latent_frames, block.latent_height, block.latent_width);
    }
  }
  return Builder(spec).take();
}

std::vector<TimeSource> time_sources(const PackedLayout& layout) {
  std::vector<TimeSource> sources(static_cast<size_t>(layout.rows), TimeSource::video);
  for (int64_t i = 0; i < layout.condition_video_rows; ++i) sources[layout.video_rows[i]] = TimeSource::condition;
  for (int64_t i = 0; i < static_cast<int64_t>(layout.audio_rows.size()); ++i) {
    sources[layout.audio_rows[i]] = i < layout.condition_audio_rows ? TimeSource::reference_sound : TimeSource::audio;
  }
  return sources;
}

std::array<float, kTimeSources> source_times(float video_time, float audio_time) {
  return {video_time, audio_time, std::max(video_time, kConditionTime), kReferenceSoundTime};
}

RowTimes row_times(const PackedLayout& layout, float video_time, float audio_time) {
  const std::array<float, kTimeSources> by_source = source_times(video_time, audio_time);
  RowTimes out;
  out.times = {video_time, audio_time};
  if (layout.condition_video_rows > 0) out.times.push_back(by_source[static_cast<size_t>(TimeSource::condition)]);
  if (layout.condition_audio_rows > 0) out.times.push_back(by_source[static_cast<size_t>(TimeSource::reference_sound)]);
  std::sort(out.times.begin(), out.times.end());
  out.times.erase(std::unique(out.times.begin(), out.times.end()), out.times.end());
  std::array<int32_t, kTimeSources> index{};
  for (size_t i = 0; i < kTimeSources; ++i) {
    index[i] = static_cast<int32_t>(std::lower_bound(out.times.begin(), out.times.end(), by_source[i]) -
                                    out.times.begin());
  }
  for (const TimeSource source : time_sources(layout)) out.index.push_back(index[static_cast<size_t>(source)]);
  return out;
}

}  // namespace h3
