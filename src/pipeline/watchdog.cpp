#include "pipeline/watchdog.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace h3 {
namespace {

constexpr double kMeanLimit = 0.05;       // a sound has no direct current
constexpr double kFullScaleLimit = 0.01;  // share of samples at full scale
constexpr double kFullScale = 0.999;
constexpr double kSilenceLimit = 1e-4;  // rms
constexpr double kDarkLuma = 4.0 / 255;
constexpr double kDarkShare = 0.9;
constexpr double kFrozenLimit = 0.2 / 255;
constexpr double kSeamLimit = 3;

// Where neighbouring pixels belong to different tiles: the start of each later tile, and the end of its blend.
bool mark_seams(const TileAxis& axis, std::vector<char>& seams) {
  for (size_t i = 1; i < axis.starts.size(); ++i) {
    const size_t start = static_cast<size_t>(axis.starts[i]);
    const size_t end = start + static_cast<size_t>(i - 1 < axis.overlaps.size() ? axis.overlaps[i - 1] : 0);
    if (start < seams.size()) seams[start] = 1;
    if (end < seams.size()) seams[end] = 1;
  }
  return axis.starts.size() > 1;
}

}  // namespace

Json Finding::to_json() const {
  Json json = Json::object({{"check", check}, {"value", value}, {"limit", limit}, {"ok", ok}});
  if (!ok) json.set("text", text);
  return json;
}

void require_finite(const char* stage, int step, int steps, const char* what, std::span<const float> values) {
  size_t bad = 0, first = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    if (bad == 0) first = i;
    ++bad;
  }
  if (bad == 0) return;
  const std::string where = step > 0 ? strf(" at step %d of %d", step, steps) : "";
  fail(Code::numeric,
       "%s%s: %zu of %zu values of the %s are NaN or infinite, the first is element %zu; try another "
       "precision, or check the model files",
       stage, where.c_str(), bad, values.size(), what, first);
}

Watchdog::Watchdog(int width, int height)
    : width_(width), height_(height), seam_column_(static_cast<size_t>(width)), seam_row_(static_cast<size_t>(height)) {
  tiled_ = mark_seams(tile_axis(width), seam_column_);
  tiled_ = mark_seams(tile_axis(height), seam_row_) || tiled_;
}

// Rec. 601 weights: close enough for thresholds.
void Watchdog::add_luma(const float* rgb, int64_t frame_stride, std::vector<float>& luma) const {
  const size_t pixels = luma.size();
  const float* const green = rgb + frame_stride;
  const float* const blue = green + frame_stride;
  for (size_t i = 0; i < pixels; ++i) luma[i] = 0.299f * rgb[i] + 0.587f * green[i] + 0.114f * blue[i];
}

void Watchdog::add_gradients(const std::vector<float>& luma) {
  const size_t width = static_cast<size_t>(width_);
  for (size_t y = 0; y < static_cast<size_t>(height_); ++y) {
    for (size_t x = 0; x < width; ++x) {
      const size_t at = y * width + x;
      if (x > 0) {
        const double step = std::abs(luma[at] - luma[at - 1]);
        (seam_column_[x] ? seam_gradient_ : other_gradient_) += step;
        ++(seam_column_[x] ? seam_count_ : other_count_);
      }
      if (y > 0) {
        const double step = std::abs(luma[at] - luma[at - width]);
        (seam_row_[y] ? seam_gradient_ : other_gradient_) += step;
        ++(seam_row_[y] ? seam_count_ : other_count_);
      }
    }
  }
}

void Watchdog::add_frames(const float* rgb, int frames) {
  const size_t pixels = static_cast<size_t>(width_) * static_cast<size_t>(height_);
  const size_t plane = pixels * static_cast<size_t>(frames);
  require_finite("decode video", 0, 0, "frames", {rgb, 3 * plane});
  std::vector<float> luma(pixels);
  for (int frame = 0; frame < frames; ++frame, ++frames_) {
    add_luma(rgb + static_cast<size_t>(frame) * pixels, static_cast<int64_t>(plane), luma);
    double sum = 0, difference = 0;
    for (size_t i = 0; i < pixels; ++i) sum += luma[i];
    if (sum / static_cast<double>(pixels) < kDarkLuma) ++dark_frames_;
    if (frames_ > 0) {
      for (size_t i = 0; i < pixels; ++i) difference += std::abs(luma[i] - last_luma_[i]);
      difference_sum_ += difference / static_cast<double>(pixels);
    }
    if (tiled_) add_gradients(luma);
    last_luma_ = luma;
  }
}

void Watchdog::set_audio(const float* samples, int channels, int64_t count) {
  const size_t total = static_cast<size_t>(channels) * static_cast<size_t>(count);
  require_finite("decode audio", 0, 0, "samples", {samples, total});
  if (total == 0) return;
  double squares = 0;
  size_t full = 0;
  for (int channel = 0; channel < channels; ++channel) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double value = samples[static_cast<int64_t>(channel) * count + i];
      sum += value;
      squares += value * value;
      full += std::abs(value) >= kFullScale;
    }
    audio_mean_ = std::max(audio_mean_, std::abs(sum / static_cast<double>(count)));
  }
  audio_rms_ = std::sqrt(squares / static_cast<double>(total));
  audio_full_ = static_cast<double>(full) / static_cast<double>(total);
  has_audio_ = true;
}

std::vector<Finding> Watchdog::findings() const {
  std::vector<Finding> out;
  const auto add = [&](const char* check, double value, double limit, bool ok, const char* text) {
    Finding finding{check, value, limit, ok, ""};
    if (!finding.ok) finding.text = strf("%s (%.4g, limit %.4g)", text, value, limit);
    out.push_back(std::move(finding));
  };
  if (has_audio_) {
    add("dc_offset", audio_mean_, kMeanLimit, audio_mean_ <= kMeanLimit,
        "the sound is off centre, a sign of broken audio latents");
    add("clipping", audio_full_, kFullScaleLimit, audio_full_ <= kFullScaleLimit, "the sound is clipped");
    add("silence", audio_rms_, kSilenceLimit, audio_rms_ >= kSilenceLimit, "the sound is silent");
  }
  if (frames_ > 0) {
    const double dark = static_cast<double>(dark_frames_) / static_cast<double>(frames_);
    add("black", dark, kDarkShare, dark < kDarkShare, "the picture is black");
  }
  if (frames_ > 1) {
    const double change = difference_sum_ / static_cast<double>(frames_ - 1);
    add("frozen", change, kFrozenLimit, change >= kFrozenLimit, "the picture does not move");
  }
  if (tiled_ && seam_count_ > 0 && other_count_ > 0) {
    const double other = other_gradient_ / static_cast<double>(other_count_);
    const double seam = seam_gradient_ / static_cast<double>(seam_count_);
    const double ratio = seam / std::max(other, 1e-9);
    add("tile_grid", ratio, kSeamLimit, ratio <= kSeamLimit, "the picture shows the grid of its tiles");
  }
  return out;
}

}  // namespace h3
