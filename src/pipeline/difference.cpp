#include "pipeline/difference.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "media/media.h"
#include "store/values.h"

namespace h3 {
namespace {

namespace fs = std::filesystem;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// ---- tensors --------------------------------------------------------------------------------------------------------
double cosine_of(const float* a, const float* b, int64_t count) {
  double dot = 0, aa = 0, bb = 0;
  for (int64_t i = 0; i < count; ++i) {
    dot += static_cast<double>(a[i]) * b[i];
    aa += static_cast<double>(a[i]) * a[i];
    bb += static_cast<double>(b[i]) * b[i];
  }
  if (aa == 0 && bb == 0) return 1;
  return aa == 0 || bb == 0 ? 0 : dot / std::sqrt(aa * bb);
}

void compare_rows(const std::vector<float>& a, const std::vector<float>& b, int64_t width, TensorDifference& out) {
  const int64_t rows = static_cast<int64_t>(a.size()) / width;
  double sum = 0, floor = 0;
  out.by_row = true;
  out.row_worst = kInfinite;
  for (int64_t r = 0; r < rows; ++r) {
    const double cosine = cosine_of(a.data() + r * width, b.data() + r * width, width);
    sum += cosine;
    if (!(cosine >= out.row_worst)) {
      out.row_worst = cosine;
      out.worst_row = r;
    }
    floor += cosine_of(a.data() + r * width, b.data() + (r + 1) % rows * width, width);
  }
  out.row_mean = sum / static_cast<double>(rows);
  out.row_floor = floor / static_cast<double>(rows);
}

TensorDifference compare_tensor(const std::string& file, const TensorInfo& a, const TensorInfo& b) {
  TensorDifference out;
  out.file = file;
  out.name = a.name;
  out.shape = shape_text(a.dims);
  if (a.dims != b.dims) {
    out.same_shape = false;
    out.shape += " and " + shape_text(b.dims);
    return out;
  }
  out.identical = a.format == b.format && std::equal(a.data.begin(), a.data.end(), b.data.begin(), b.data.end());
  const std::vector<float> x = values_of(a), y = values_of(b);
  out.count = static_cast<int64_t>(x.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i]) || !std::isfinite(y[i])) {
      ++out.non_finite;
      continue;
    }
    const double d = static_cast<double>(x[i]) - y[i];
    difference += d * d;
    norm += static_cast<double>(y[i]) * y[i];
    out.max_abs = std::max(out.max_abs, std::fabs(d));
  }
  out.rel_l2 = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  if (out.non_finite > 0) return out;
  out.cosine = cosine_of(x.data(), y.data(), out.count);
  if (a.dims.size() == 2 && a.dims[0] >= 2 && a.dims[1] >= 2) compare_rows(x, y, a.dims[1], out);
  return out;
}

void compare_sources(const std::string& file, const TensorSource& a, const TensorSource& b, Difference& out) {
  for (const TensorInfo& info : a.tensors()) {
    const TensorInfo* const other = b.find(info.name);
    if (other == nullptr) {
      out.only_a.push_back(file.empty() ? info.name : file + ": " + info.name);
    } else {
      out.tensors.push_back(compare_tensor(file, info, *other));
    }
  }
  for (const TensorInfo& info : b.tensors()) {
    if (a.find(info.name) == nullptr) out.only_b.push_back(file.empty() ? info.name : file + ": " + info.name);
  }
}

// "video_velocity.12" -> "video_velocity", 12.
bool split_step(const std::string& name, std::string& series, int& step) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos || dot + 1 == name.size() || name.size() - dot > 5) return false;
  if (name.find_first_not_of("0123456789", dot + 1) != std::string::npos) return false;
  series = name.substr(0, dot);
  step = std::atoi(name.c_str() + dot + 1);
  return true;
}

void find_series(Difference& out) {
  std::map<std::pair<std::string, std::string>, std::map<int, const TensorDifference*>> found;
  for (const TensorDifference& tensor : out.tensors) {
    std::string name;
    int step = 0;
    if (split_step(tensor.name, name, step)) found[{tensor.file, name}][step] = &tensor;
  }
  for (const auto& [key, steps] : found) {
    SeriesDifference series;
    series.file = key.first;
    series.name = key.second;
    series.steps = static_cast<int>(steps.size());
    for (const auto& [step, tensor] : steps) {
      if (!tensor->identical && series.first < 0) {
        series.first = step;
        series.rel_l2_first = tensor->rel_l2;
      }
      series.rel_l2_last = tensor->rel_l2;
    }
    out.series.push_back(std::move(series));
  }
}

// ---- clips ----------------------------------------------------------------------------------------------------------
double psnr_of(double squares, double count) {
  return squares == 0 ? kInfinite : 10 * std::log10(255.0 * 255.0 * count / squares);
}

std::vector<double> luma_of(const std::vector<uint8_t>& rgb) {
  std::vector<double> luma(rgb.size() / 3);
  for (size_t i = 0; i < luma.size(); ++i) {
    luma[i] = 0.299 * rgb[3 * i] + 0.587 * rgb[3 * i + 1] + 0.114 * rgb[3 * i + 2];
  }
  return luma;
}

// Mean structural similarity (Wang et al. 2004) over windows of 8x8 with stride 4, uniform weights.
double ssim_of(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b, int width, int height) {
  constexpr int kWindow = 8, kStride = 4;
  constexpr double kC1 = 0.01 * 255 * 0.01 * 255, kC2 = 0.03 * 255 * 0.03 * 255;
  const std::vector<double> x = luma_of(a), y = luma_of(b);
  double total = 0;
  int64_t windows = 0;
  for (int top = 0; top + kWindow <= height; top += kStride) {
    for (int left = 0; left + kWindow <= width; left += kStride) {
      double sx = 0, sy = 0, sxx = 0, syy = 0, sxy = 0;
      for (int r = 0; r < kWindow; ++r) {
        for (int c = 0; c < kWindow; ++c) {
          const size_t i = static_cast<size_t>(top + r) * static_cast<size_t>(width) + static_cast<size_t>(left + c);
          sx += x[i];
          sy += y[i];
          sxx += x[i] * x[i];
          syy += y[i] * y[i];
          sxy += x[i] * y[i];
        }
      }
      constexpr double n = kWindow * kWindow;
      const double mx = sx / n, my = sy / n, vx = sxx / n - mx * mx, vy = syy / n - my * my, cov = sxy / n - mx * my;
      total += (2 * mx * my + kC1) * (2 * cov + kC2) / ((mx * mx + my * my + kC1) * (vx + vy + kC2));
      ++windows;
    }
  }
  return windows == 0 ? 1 : total / static_cast<double>(windows);
}

void compare_sound(const ClipData& a, const ClipData& b, ClipDifference& out) {
  if (a.samples.empty() || b.samples.empty() || a.sample_rate != b.sample_rate || a.channels != b.channels) return;
  out.sound = true;
  const size_t count_a = a.samples.size() / static_cast<size_t>(a.channels);
  const size_t count_b = b.samples.size() / static_cast<size_t>(b.channels);
  const size_t count = std::min(count_a, count_b);
  out.samples = static_cast<int64_t>(count);
  double signal = 0, noise = 0;
  for (size_t channel = 0; channel < static_cast<size_t>(a.channels); ++channel) {
    for (size_t i = 0; i < count; ++i) {
      const double want = b.samples[channel * count_b + i], d = a.samples[channel * count_a + i] - want;
      signal += want * want;
      noise += d * d;
    }
  }
  out.audio_snr = noise == 0 ? kInfinite : signal == 0 ? -kInfinite : 10 * std::log10(signal / noise);
}

ClipDifference compare_clips(const std::string& path_a, const std::string& path_b) {
  const ClipData a = read_clip(path_a), b = read_clip(path_b);
  if (a.width != b.width || a.height != b.height) {
    fail(Code::usage, "%s is %dx%d and %s is %dx%d; only clips of one size can be compared", path_a.c_str(), a.width,
         a.height, path_b.c_str(), b.width, b.height);
  }
  ClipDifference out;
  out.width = a.width;
  out.height = a.height;
  out.frames_a = static_cast<int64_t>(a.frames.size());
  out.frames_b = static_cast<int64_t>(b.frames.size());
  out.frames = std::min(out.frames_a, out.frames_b);
  out.psnr_worst = kInfinite;
  double squares = 0, ssim = 0;
  const double pixels = 3.0 * a.width * a.height;
  for (int64_t f = 0; f < out.frames; ++f) {
    const std::vector<uint8_t>&x = a.frames[static_cast<size_t>(f)], &y = b.frames[static_cast<size_t>(f)];
    double frame = 0;
    for (size_t i = 0; i < x.size(); ++i) frame += static_cast<double>((x[i] - y[i]) * (x[i] - y[i]));
    squares += frame;
    const double psnr = psnr_of(frame, pixels);
    if (psnr < out.psnr_worst) {
      out.psnr_worst = psnr;
      out.worst_frame = f;
    }
    if (frame != 0 && out.first_frame < 0) out.first_frame = f;
    const double similar = frame == 0 ? 1 : ssim_of(x, y, a.width, a.height);
    ssim += similar;
    out.ssim_worst = std::min(out.ssim_worst, similar);
  }
  if (out.frames > 0) {
    out.psnr = psnr_of(squares, pixels * static_cast<double>(out.frames));
    out.ssim = ssim / static_cast<double>(out.frames);
  }
  compare_sound(a, b, out);
  return out;
}

// ---- what is compared -----------------------------------------------------------------------------------------------
enum class Kind : uint8_t { clip, tensors, folder };

bool is_tensor_file(const fs::path& path) {
  for (const char* ending : {".safetensors", ".st", ".sft"}) {
    if (path.extension() == ending) return true;
  }
  return false;
}

Kind kind_of(const std::string& path) {
  if (!fs::exists(path)) fail(Code::io, "%s does not exist", path.c_str());
  if (fs::is_directory(path)) return Kind::folder;
  return is_tensor_file(path) ? Kind::tensors : Kind::clip;
}

std::set<std::string> tensor_files(const std::string& folder) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file() && is_tensor_file(entry.path())) names.insert(entry.path().filename().string());
  }
  return names;
}

void compare_folders(const std::string& a, const std::string& b, Difference& out) {
  const std::set<std::string> names_a = tensor_files(a), names_b = tensor_files(b);
  if (names_a.empty() && names_b.empty()) {
    fail(Code::data, "%s and %s hold no .safetensors files; write them with h3 generate --dump STAGE=FILE", a.c_str(),
         b.c_str());
  }
  for (const std::string& name : names_a) {
    if (names_b.count(name) == 0) {
      out.only_a.push_back(name);
    } else {
      compare_sources(name, *open_safetensors(a + "/" + name), *open_safetensors(b + "/" + name), out);
    }
  }
  for (const std::string& name : names_b) {
    if (names_a.count(name) == 0) out.only_b.push_back(name);
  }
}

std::string decibel(double value) {
  return std::isinf(value) ? value > 0 ? "identical" : "-inf dB" : strf("%.2f dB", value);
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

std::string clip_text(const ClipDifference& clip) {
  std::string text = strf("%lld frames of %dx%d", static_cast<long long>(clip.frames), clip.width, clip.height);
  if (clip.frames_a != clip.frames_b) {
    text += strf(" (of %lld and %lld)", static_cast<long long>(clip.frames_a), static_cast<long long>(clip.frames_b));
  }
  text += strf("\n  PSNR   %s", decibel(clip.psnr).c_str());
  if (clip.first_frame >= 0) {
    text += strf(", worst %s in frame %lld; frame %lld is the first that differs", decibel(clip.psnr_worst).c_str(),
                 static_cast<long long>(clip.worst_frame), static_cast<long long>(clip.first_frame));
  }
  text += strf("\n  SSIM   %.5f, worst %.5f\n", clip.ssim, clip.ssim_worst);
  text += clip.sound ? strf("  sound  SNR %s over %lld samples\n", decibel(clip.audio_snr).c_str(),
                            static_cast<long long>(clip.samples))
                     : "  sound  not compared: missing, or of another rate, on one side\n";
  return text;
}

}  // namespace

Difference compare_paths(const std::string& a, const std::string& b) {
  const Kind kind = kind_of(a);
  if (kind != kind_of(b)) {
    fail(Code::usage, "%s and %s are of different kinds; give two clips, two .safetensors files or two folders",
         a.c_str(), b.c_str());
  }
  Difference out;
  if (kind == Kind::clip) {
    out.kind = "clips";
    out.clips.push_back(compare_clips(a, b));
    const ClipDifference& clip = out.clips[0];
    out.identical =
        clip.first_frame < 0 && clip.frames_a == clip.frames_b && (!clip.sound || clip.audio_snr == kInfinite);
    return out;
  }
  out.kind = kind == Kind::folder ? "folders" : "tensors";
  if (kind == Kind::folder) {
    compare_folders(a, b, out);
  } else {
    compare_sources("", *open_safetensors(a), *open_safetensors(b), out);
  }
  find_series(out);
  const auto same = [](const TensorDifference& tensor) { return tensor.identical; };
  out.identical = out.only_a.empty() && out.only_b.empty() && !out.tensors.empty() &&
                  std::all_of(out.tensors.begin(), out.tensors.end(), same);
  return out;
}

Json Difference::to_json() const {
  Json json = Json::object({{"kind", kind}, {"identical", identical}});
  Json list = Json::array();
  for (const TensorDifference& t : tensors) {
    Json row = Json::object({{"file", t.file}, {"name", t.name}, {"shape", t.shape}, {"same_shape", t.same_shape}});
    row.set("identical", t.identical).set("non_finite", t.non_finite).set("rel_l2", number(t.rel_l2));
    row.set("max_abs", number(t.max_abs)).set("cosine", number(t.cosine));
    if (t.by_row) {
      row.set("row_mean", t.row_mean).set("row_worst", t.row_worst).set("worst_row", t.worst_row);
      row.set("row_floor", t.row_floor);
    }
    list.push(std::move(row));
  }
  json.set("tensors", std::move(list));
  Json runs = Json::array();
  for (const SeriesDifference& s : series) {
    runs.push(Json::object({{"file", s.file},
                            {"name", s.name},
                            {"steps", s.steps},
                            {"first_difference", s.first},
                            {"rel_l2_first", number(s.rel_l2_first)},
                            {"rel_l2_last", number(s.rel_l2_last)}}));
  }
  json.set("series", std::move(runs));
  for (const ClipDifference& c : clips) {
    Json row = Json::object({{"frames", c.frames}, {"psnr", number(c.psnr)}, {"psnr_worst", number(c.psnr_worst)}});
    row.set("worst_frame", c.worst_frame).set("first_difference", c.first_frame).set("ssim", c.ssim);
    row.set("ssim_worst", c.ssim_worst).set("sound", c.sound).set("audio_snr", number(c.audio_snr));
    json.set("clip", std::move(row));
  }
  Json a = Json::array(), b = Json::array();
  for (const std::string& name : only_a) a.push(name);
  for (const std::string& name : only_b) b.push(name);
  return json.set("only_a", std::move(a)).set("only_b", std::move(b));
}

std::string Difference::to_text() const {
  std::string text = identical ? "identical\n" : "";
  for (const ClipDifference& clip : clips) text += clip_text(clip);
  for (const SeriesDifference& s : series) {
    const std::string name = (s.file.empty() ? "" : s.file + ": ") + s.name;
    text += s.first < 0 ? strf("%s: %d steps, identical\n", name.c_str(), s.steps)
                        : strf("%s: %d steps, the first that differs is %d (rel L2 %.3g; %.3g in the last)\n",
                               name.c_str(), s.steps, s.first, s.rel_l2_first, s.rel_l2_last);
  }
  for (const TensorDifference& t : tensors) {
    const std::string name = (t.file.empty() ? "" : t.file + ": ") + t.name + " " + t.shape;
    if (!t.same_shape) {
      text += name + ": different shapes\n";
      continue;
    }
    if (t.identical) continue;
    text += strf("%-48s rel L2 %.3e  max %.3e  cosine %.6f", name.c_str(), t.rel_l2, t.max_abs, t.cosine);
    if (t.by_row) {
      text += strf("  rows: mean %.6f, worst %.6f (row %lld), floor %.3f", t.row_mean, t.row_worst,
                   static_cast<long long>(t.worst_row), t.row_floor);
    }
    if (t.non_finite > 0) text += strf("  %lld values are not finite", static_cast<long long>(t.non_finite));
    text += "\n";
  }
  for (const std::string& name : only_a) text += "only in the first: " + name + "\n";
  for (const std::string& name : only_b) text += "only in the second: " + name + "\n";
  return text;
}

}  // namespace h3
