// The rules of eval.json.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/error.h"
#include "bench/eval.h"

namespace h3 {
namespace {

constexpr double kFps = 24, kRate = 32000;
constexpr int kWindow = 160;  // 5 ms of samples

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle), values.end());
  const double upper = values[middle];
  if (values.size() % 2 == 1) return upper;
  return (*std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle)) + upper) / 2;
}

// Median of bytes through their histogram; an even count takes the mean of the two in the middle.
double median_of(const std::vector<int64_t>& histogram) {
  const int64_t count = std::accumulate(histogram.begin(), histogram.end(), int64_t{0});
  if (count == 0) return 0;
  const auto at = [&](int64_t rank) {
    int64_t seen = 0;
    for (size_t value = 0; value < histogram.size(); ++value) {
      seen += histogram[value];
      if (seen > rank) return static_cast<double>(value);
    }
    return 0.0;
  };
  return (at((count - 1) / 2) + at(count / 2)) / 2;
}

struct Region {
  int first = 0, last = 0;  // columns
};

// What is seen of the object in one frame.
struct Blob {
  bool visible = false;
  double area = 0, x = 0, y = 0, extent = 0;  // x, y: centroid in pixels of the whole frame
  double color[3] = {0, 0, 0};
};

struct Track {
  double background[3] = {0, 0, 0};
  std::vector<Blob> blobs;  // one per frame
};

class Tracker {
 public:
  Tracker(const EvalClip& clip, Region region) : clip_(clip), region_(region), width_(region.last - region.first) {}

  Track run() {
    find_background();
    find_threshold();
    for (const std::vector<uint8_t>& frame : clip_.frames) track_.blobs.push_back(find_blob(frame));
    return std::move(track_);
  }

 private:
  const uint8_t* pixel(const std::vector<uint8_t>& frame, int x, int y) const {
    return frame.data() +
           3 * (static_cast<size_t>(y) * static_cast<size_t>(clip_.width) + static_cast<size_t>(x + region_.first));
  }
  double distance(const uint8_t* rgb) const {
    double sum = 0;
    for (int c = 0; c < 3; ++c) sum += (rgb[c] - track_.background[c]) * (rgb[c] - track_.background[c]);
    return std::sqrt(sum);
  }
  void find_background();
  void find_threshold();
  Blob find_blob(const std::vector<uint8_t>& frame) const;
  std::vector<int> largest_component(const std::vector<char>& mask) const;

  const EvalClip& clip_;
  Region region_;
  int width_;
  double threshold_ = 0;
  Track track_;
};

// Per-channel median of the outer two pixels over all frames.
void Tracker::find_background() {
  std::vector<std::vector<int64_t>> histograms(3, std::vector<int64_t>(256));
  for (const std::vector<uint8_t>& frame : clip_.frames) {
    for (int y = 0; y < clip_.height; ++y) {
      for (int x = 0; x < width_; ++x) {
        const bool border = y < 2 || y >= clip_.height - 2 || x < 2 || x >= width_ - 2;
        if (!border) continue;
        for (int c = 0; c < 3; ++c) ++histograms[static_cast<size_t>(c)][pixel(frame, x, y)[c]];
      }
    }
  }
  for (size_t c = 0; c < 3; ++c) track_.background[c] = median_of(histograms[c]);
}

// max(70, half of the median of the distances above 70 over the clip)
void Tracker::find_threshold() {
  std::vector<double> far;
  for (const std::vector<uint8_t>& frame : clip_.frames) {
    for (int y = 0; y < clip_.height; ++y) {
      for (int x = 0; x < width_; ++x) {
        const double d = distance(pixel(frame, x, y));
        if (d > 70) far.push_back(d);
      }
    }
  }
  threshold_ = std::max(70.0, median(std::move(far)) / 2);
}

std::vector<int> Tracker::largest_component(const std::vector<char>& mask) const {
  std::vector<char> seen(mask.size());
  std::vector<int> best, current;
  for (size_t start = 0; start < mask.size(); ++start) {
    if (!mask[start] || seen[start]) continue;
    current.assign(1, static_cast<int>(start));
    seen[start] = 1;
    for (size_t next = 0; next < current.size(); ++next) {
      const int at = current[next], x = at % width_, y = at / width_;
      const int neighbours[4] = {x > 0 ? at - 1 : -1, x + 1 < width_ ? at + 1 : -1, y > 0 ? at - width_ : -1,
                                 y + 1 < clip_.height ? at + width_ : -1};
      for (const int other : neighbours) {
        if (other < 0 || !mask[static_cast<size_t>(other)] || seen[static_cast<size_t>(other)]) continue;
        seen[static_cast<size_t>(other)] = 1;
        current.push_back(other);
      }
    }
    if (current.size() > best.size()) best.swap(current);
  }
  return best;
}

Blob Tracker::find_blob(const std::vector<uint8_t>& frame) const {
  std::vector<char> mask(static_cast<size_t>(width_) * static_cast<size_t>(clip_.height));
  for (int y = 0; y < clip_.height; ++y) {
    for (int x = 0; x < width_; ++x) {
      mask[static_cast<size_t>(y * width_ + x)] = distance(pixel(frame, x, y)) > threshold_;
    }
  }
  const std::vector<int> pixels = largest_component(mask);
  Blob blob;
  blob.area = static_cast<double>(pixels.size());
  blob.visible = blob.area >= 0.002 * clip_.height * width_;
  if (pixels.empty()) return blob;
  int left = width_, right = -1, top = clip_.height, bottom = -1;
  std::vector<std::vector<int64_t>> histograms(3, std::vector<int64_t>(256));
  for (const int at : pixels) {
    const int x = at % width_, y = at / width_;
    left = std::min(left, x), right = std::max(right, x), top = std::min(top, y), bottom = std::max(bottom, y);
    blob.x += x;
    blob.y += y;
    for (int c = 0; c < 3; ++c) ++histograms[static_cast<size_t>(c)][pixel(frame, x, y)[c]];
  }
  blob.x = blob.x / blob.area + region_.first;
  blob.y /= blob.area;
  blob.extent = blob.area / (static_cast<double>(right - left + 1) * (bottom - top + 1));
  for (size_t c = 0; c < 3; ++c) blob.color[c] = median_of(histograms[c]);
  return blob;
}

std::string nearest_color(const std::vector<std::pair<std::string, std::vector<double>>>& entries,
                          const double rgb[3]) {
  std::string best;
  double best_distance = 0;
  for (const auto& [name, color] : entries) {
    double d = 0;
    for (size_t c = 0; c < 3; ++c) d += (color[c] - rgb[c]) * (color[c] - rgb[c]);
    if (best.empty() || d < best_distance) best = name, best_distance = d;
  }
  return best;
}

std::vector<Blob> visible_of(const Track& track) {
  std::vector<Blob> out;
  for (const Blob& blob : track.blobs) {
    if (blob.visible) out.push_back(blob);
  }
  return out;
}

std::string color_of(const EvalRules& rules, const std::vector<Blob>& blobs) {
  double rgb[3];
  for (int c = 0; c < 3; ++c) {
    std::vector<double> values;
    for (const Blob& blob : blobs) values.push_back(blob.color[c]);
    rgb[c] = median(std::move(values));
  }
  return nearest_color(rules.palette, rgb);
}

std::string shape_of(const std::vector<Blob>& blobs) {
  double largest = 0;
  for (const Blob& blob : blobs) largest = std::max(largest, blob.area);
  std::vector<double> extents;
  for (const Blob& blob : blobs) {
    if (blob.area > 0.6 * largest) extents.push_back(blob.extent);
  }
  const double extent = median(std::move(extents));
  return extent > 0.87 ? "square" : extent > 0.645 ? "circle" : extent > 0.43 ? "triangle" : "star";
}

std::string size_of(const std::vector<Blob>& blobs, const std::string& shape, int shorter) {
  const double k = shape == "square" ? 3.0976 : shape == "triangle" ? 1.809 : shape == "star" ? 1.837 : 3.1416;
  std::vector<double> areas;
  for (const Blob& blob : blobs) areas.push_back(blob.area);
  const double radius = std::sqrt(median(std::move(areas)) / k) / shorter;
  return radius < 0.145 ? "small" : radius > 0.195 ? "big" : "medium";
}

double mean_area(const std::vector<Blob>& blobs, size_t first, size_t count) {
  double sum = 0;
  for (size_t i = first; i < first + count; ++i) sum += blobs[i].area;
  return sum / static_cast<double>(count);
}

std::string motion_of(const Track& track, const std::vector<Blob>& visible, double width, double height) {
  if (visible.empty()) return "none";
  int hidden = 0, changes = 0;
  for (size_t i = 0; i < track.blobs.size(); ++i) {
    hidden += !track.blobs[i].visible;
    changes += i > 0 && track.blobs[i].visible != track.blobs[i - 1].visible;
  }
  if (hidden > 0.1 * static_cast<double>(track.blobs.size()) && changes >= 2) return "blink";
  const size_t three = std::min<size_t>(3, visible.size());
  const double growth = mean_area(visible, visible.size() - three, three) / mean_area(visible, 0, three);
  if (growth > 2.2) return "grow";
  if (growth < 0.45) return "shrink";
  double left = 1e9, right = -1e9, top = 1e9, bottom = -1e9, travel = 0;
  for (size_t i = 0; i < visible.size(); ++i) {
    left = std::min(left, visible[i].x), right = std::max(right, visible[i].x);
    top = std::min(top, visible[i].y), bottom = std::max(bottom, visible[i].y);
    if (i > 0) travel += std::abs(visible[i].y - visible[i - 1].y);
  }
  const double x_range = right - left, y_range = bottom - top;
  if (x_range > 0.2 * width && y_range > 0.2 * height) return "orbit";
  if (x_range > 0.2 * width) return visible.back().x > visible.front().x ? "right" : "left";
  if (y_range > 0.15 * height) {
    if (travel > 1.5 * y_range) return "bounce";
    return visible.back().y > visible.front().y ? "down" : "up";
  }
  return "still";
}

// Times at which the picture asks for a beep.
std::vector<double> video_events(const Track& track, const std::string& motion, double height) {
  std::vector<double> times;
  const std::vector<Blob>& blobs = track.blobs;
  if (motion == "blink") {
    for (size_t i = 1; i < blobs.size(); ++i) {
      if (blobs[i].visible && !blobs[i - 1].visible) times.push_back(static_cast<double>(i) / kFps);
    }
  } else if (motion == "bounce") {
    double lowest = -1e9;
    for (const Blob& blob : blobs) {
      if (blob.visible) lowest = std::max(lowest, blob.y);
    }
    for (size_t i = 1; i + 1 < blobs.size(); ++i) {
      if (!blobs[i - 1].visible || !blobs[i].visible || !blobs[i + 1].visible) continue;
      const double before = blobs[i - 1].y, here = blobs[i].y, after = blobs[i + 1].y;
      if (!(here >= before && here > after) || here < lowest - 0.12 * height) continue;
      const double curvature = before - 2 * here + after;
      const double shift = curvature == 0 ? 0 : 0.5 * (before - after) / curvature;
      times.push_back((static_cast<double>(i) + shift) / kFps);
    }
  }
  const double end = static_cast<double>(blobs.size()) / kFps;
  std::vector<double> kept;
  for (const double time : times) {
    if (time >= 0.06 && time <= end - 0.06) kept.push_back(time);
  }
  return kept;
}

// Rms of both channels in windows of 5 ms.
std::vector<double> envelope(const EvalClip& clip) {
  std::vector<double> out;
  for (size_t start = 0; start + kWindow <= clip.left.size(); start += kWindow) {
    double squares = 0;
    for (size_t i = start; i < start + kWindow; ++i) {
      squares += static_cast<double>(clip.left[i]) * clip.left[i] + static_cast<double>(clip.right[i]) * clip.right[i];
    }
    out.push_back(std::sqrt(squares / (2 * kWindow)));
  }
  return out;
}

std::vector<double> sound_onsets(const std::vector<double>& levels) {
  std::vector<double> times;
  if (levels.empty()) return times;
  const double loudest = *std::max_element(levels.begin(), levels.end());
  double last = -1;
  for (size_t i = 4; i < levels.size(); ++i) {
    if (!(levels[i] > 0.4 * loudest && levels[i] > 1.7 * levels[i - 4] + 0.02 * loudest)) continue;
    const double time = (static_cast<double>(i) - 1) * 0.005;
    if (last >= 0 && time - last < 0.1) continue;
    times.push_back(time);
    last = time;
  }
  return times;
}

std::string pitch_of(const EvalRules& rules, const EvalClip& clip) {
  const size_t count = clip.left.size();
  std::vector<double> windowed(count);
  for (size_t i = 0; i < count; ++i) {
    const double phase =
        2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(std::max<size_t>(count, 2) - 1);
    windowed[i] = (static_cast<double>(clip.left[i]) + clip.right[i]) * (0.5 - 0.5 * std::cos(phase));
  }
  std::string best;
  double best_magnitude = -1;
  for (const auto& [name, hertz] : rules.pitch) {
    for (const double detune : {-0.015, -0.0075, 0.0, 0.0075, 0.015}) {
      const double step = 2 * std::numbers::pi * hertz * (1 + detune) / kRate;
      double re = 0, im = 0;
      for (size_t i = 0; i < count; ++i) {
        re += windowed[i] * std::cos(step * static_cast<double>(i));
        im += windowed[i] * std::sin(step * static_cast<double>(i));
      }
      const double magnitude = std::hypot(re, im);
      if (magnitude > best_magnitude) best_magnitude = magnitude, best = name;
    }
  }
  return best;
}

// Mean |R^2 / (L^2 + R^2) - x / W| over the frames that can be heard and seen; -1 when there is none.
double pan_error(const EvalClip& clip, const Track& track) {
  double sum = 0;
  int count = 0;
  for (size_t frame = 0; frame < track.blobs.size(); ++frame) {
    const size_t first = static_cast<size_t>(static_cast<double>(frame) * kRate / kFps);
    const size_t last = std::min(clip.left.size(), static_cast<size_t>(static_cast<double>(frame + 1) * kRate / kFps));
    if (!track.blobs[frame].visible || first >= last) continue;
    double left = 0, right = 0;
    for (size_t i = first; i < last; ++i) {
      left += static_cast<double>(clip.left[i]) * clip.left[i];
      right += static_cast<double>(clip.right[i]) * clip.right[i];
    }
    left /= static_cast<double>(last - first);
    right /= static_cast<double>(last - first);
    if (!(left + right > 4e-4)) continue;
    // Pixel x covers x .. x + 1, so its centre is at x + 1/2.
    sum += std::abs(right / (left + right) - (track.blobs[frame].x + 0.5) / clip.width);
    ++count;
  }
  return count == 0 ? -1 : sum / count;
}

double psnr(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  if (a.size() != b.size() || a.empty()) return 0;
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
  const double mse = squares / static_cast<double>(a.size());
  return mse == 0 ? 99 : 10 * std::log10(255.0 * 255.0 / mse);
}

double share_on_time(const std::vector<double>& events, const std::vector<double>& onsets) {
  int hits = 0;
  for (const double event : events) {
    hits += std::any_of(onsets.begin(), onsets.end(), [&](double onset) { return std::abs(onset - event) <= 0.065; });
  }
  return events.empty() ? 0 : static_cast<double>(hits) / static_cast<double>(events.size());
}

void score_sound(const EvalRules& rules, const EvalExpectation& expect, const EvalClip& clip,
                 const std::vector<Track>& tracks, EvalScore& score) {
  double squares = 0;
  for (size_t i = 0; i < clip.left.size(); ++i) {
    squares += static_cast<double>(clip.left[i]) * clip.left[i] + static_cast<double>(clip.right[i]) * clip.right[i];
  }
  score.rms = clip.left.empty() ? 0 : std::sqrt(squares / (2 * static_cast<double>(clip.left.size())));
  if (expect.silent) {
    score.checks["silent"] = score.rms < 0.01;
    return;
  }
  score.checks["audible"] = score.rms > 0.03;
  const std::vector<double> levels = envelope(clip);
  const bool one = tracks.size() == 1;
  if (one) score.checks["pitch"] = pitch_of(rules, clip) == expect.color;
  if (expect.motion == "bounce" || expect.motion == "blink") {
    score.onsets = sound_onsets(levels);
    score.video_events = video_events(tracks[0], expect.motion, clip.height);  // of two objects, the left one
    score.checks["sync"] = share_on_time(score.video_events, score.onsets);
  }
  if (one && (expect.motion == "left" || expect.motion == "right" || expect.motion == "orbit")) {
    score.pan_error = pan_error(clip, tracks[0]);
    score.checks["pan"] = score.pan_error >= 0 && score.pan_error < 0.12;
  }
  if ((expect.motion == "grow" || expect.motion == "shrink") && levels.size() >= 3) {
    const auto third = static_cast<std::ptrdiff_t>(levels.size() / 3);
    const double first = std::accumulate(levels.begin(), levels.begin() + third, 0.0);
    const double last = std::accumulate(levels.end() - third, levels.end(), 0.0);
    score.checks["loudness"] = expect.motion == "grow" ? last > 1.4 * first : last < 0.7 * first;
  }
}

}  // namespace

EvalRules EvalRules::from_json(const Json& file) {
  EvalRules rules;
  const auto colors = [&](const char* key, std::vector<std::pair<std::string, std::vector<double>>>& out) {
    for (const auto& [name, value] : file.at(key).members()) {
      out.emplace_back(name,
                       std::vector<double>{value.at(0).as_double(), value.at(1).as_double(), value.at(2).as_double()});
    }
  };
  colors("palette_rgb", rules.palette);
  colors("background_rgb", rules.background);
  for (const auto& [name, value] : file.at("pitch_hz").members()) rules.pitch.emplace_back(name, value.as_double());
  return rules;
}

EvalExpectation EvalExpectation::from_json(const Json& json) {
  EvalExpectation expect;
  const auto text = [&](const char* key, std::string& out) {
    if (const Json* value = json.find(key)) out = value->as_string();
  };
  text("color", expect.color);
  text("shape", expect.shape);
  text("background", expect.background);
  text("motion", expect.motion);
  text("size", expect.size);
  text("color_right", expect.color_right);
  text("shape_right", expect.shape_right);
  if (const Json* value = json.find("silent")) expect.silent = value->as_bool();
  return expect;
}

double EvalScore::mean() const {
  double sum = 0;
  for (const auto& [name, value] : checks) sum += value;
  return checks.empty() ? 0 : sum / static_cast<double>(checks.size());
}

EvalScore score_clip(const EvalRules& rules, const EvalExpectation& expect, const EvalClip& clip) {
  EvalScore score;
  const bool two = !expect.color_right.empty();
  std::vector<Region> regions = {{0, two ? clip.width / 2 : clip.width}};
  if (two) regions.push_back({clip.width / 2, clip.width});
  std::vector<Track> tracks;
  for (const Region& region : regions) tracks.push_back(Tracker(clip, region).run());
  for (size_t i = 0; i < tracks.size(); ++i) {
    const double part = 1.0 / static_cast<double>(tracks.size());
    const std::vector<Blob> visible = visible_of(tracks[i]);
    const std::string shape = visible.empty() ? "none" : shape_of(visible);
    const double width = regions[i].last - regions[i].first;
    score.checks["bg"] += part * (nearest_color(rules.background, tracks[i].background) == expect.background);
    score.checks["color"] +=
        part * (!visible.empty() && color_of(rules, visible) == (i == 0 ? expect.color : expect.color_right));
    score.checks["shape"] += part * (shape == (i == 0 ? expect.shape : expect.shape_right));
    score.checks["motion"] += part * (motion_of(tracks[i], visible, width, clip.height) == expect.motion);
    if (i == 0 && !expect.size.empty()) {
      score.checks["size"] =
          !visible.empty() && size_of(visible, expect.shape, std::min(clip.width, clip.height)) == expect.size;
    }
  }
  score_sound(rules, expect, clip, tracks, score);
  double keyframes = 0, held = 0;
  for (const auto& [picture, frame] : {std::pair{&expect.first, size_t{0}}, {&expect.last, clip.frames.size() - 1}}) {
    if (!*picture || clip.frames.empty()) continue;
    keyframes += 1;
    held += psnr((*picture)->rgb, clip.frames[frame]) > 20;
  }
  if (keyframes > 0) score.checks["keyframe"] = held / keyframes;
  return score;
}

}  // namespace h3
